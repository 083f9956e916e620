"""The programs of clients that embed and rank: each is what its client's own documentation shows, and compares what it
got with the answer to a plain request. This file runs in the clients' environment, which has nothing of this project:
`python embedding_programs.py NAME BASE_URL`."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import httpx

MODEL = "embedder"
QUERY = "What is the capital of France?"
TEXTS = ["Paris is the capital of France.", "Water boils at a hundred degrees.", "Bread is baked from flour."]
Vectors = Sequence[Sequence[float]]


def post(url: str, **body: Any) -> Any:
    return httpx.post(url, json=body, headers={"Authorization": "Bearer any"}).raise_for_status().json()


def plain(base: str, *texts: str) -> Vectors:
    data = post(f"{base}/v1/embeddings", model=MODEL, input=texts, encoding_format="float")["data"]
    return [one["embedding"] for one in data]


def cosines(base: str) -> list[float]:
    """Of the query to each text."""
    query, *others = plain(base, QUERY, *TEXTS)
    return [sum(one * two for one, two in zip(query, other, strict=True)) for other in others]


def check(condition: bool, what: object) -> None:
    if not condition:
        raise AssertionError(what)


def check_numbers(actual: Sequence[float], expected: Sequence[float]) -> None:
    close = len(actual) == len(expected) and all(
        abs(one - two) < 1e-5 for one, two in zip(actual, expected, strict=True)
    )
    check(close, f"{actual!r} is not {expected!r}")


def check_vectors(actual: Vectors, expected: Vectors) -> None:
    check(len(actual) == len(expected), f"There are {len(actual)} vectors.")
    for one, two in zip(actual, expected, strict=True):
        check_numbers(one, two)


def check_ranks(ranks: Sequence[tuple[int, float]], base: str, count: int) -> None:
    """ranks: indices and scores, the best first. count: how many were asked for."""
    expected = sorted(enumerate(cosines(base)), key=lambda rank: -rank[1])[:count]
    check([index for index, _ in ranks] == [index for index, _ in expected], ranks)
    check_numbers([score for _, score in ranks], [score for _, score in expected])


async def openai_embeddings(base: str) -> None:
    import openai

    client = openai.OpenAI()
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    check_vectors([one.embedding for one in answer.data], plain(base, *TEXTS))
    check(answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS), answer.usage)
    one = client.embeddings.create(model=MODEL, input=QUERY, dimensions=8, encoding_format="float", user="someone")
    check(len(one.data[0].embedding) == 8, one)
    other = await openai.AsyncOpenAI().embeddings.create(model=MODEL, input=[[5, 6, 7], [8]])
    check(len(other.data) == 2 and other.usage.prompt_tokens == 4, other.usage)
    try:
        client.embeddings.create(model=MODEL, input="a" * 10_000)
    except openai.BadRequestError as error:
        check(error.code == "context_length_exceeded", error)
    else:
        raise AssertionError("A text that is too long was embedded.")


async def cohere(base: str) -> None:
    import cohere

    client = cohere.ClientV2(api_key="any", base_url=base)
    embed: dict[str, Any] = {"model": MODEL, "input_type": "search_document", "texts": TEXTS}
    answer = client.embed(**embed, embedding_types=["float", "binary", "ubinary", "base64"])
    check_vectors(answer.embeddings.float_, plain(base, *TEXTS))
    check(len(answer.embeddings.ubinary[0]) == 6 and len(answer.embeddings.binary[0]) == 6, answer.embeddings)
    ranking: dict[str, Any] = {"model": MODEL, "query": QUERY, "documents": TEXTS}
    for top_n in (None, 2):
        found = client.rerank(**ranking, **({} if top_n is None else {"top_n": top_n})).results
        check_ranks([(one.index, one.relevance_score) for one in found], base, top_n or len(TEXTS))
    async with cohere.AsyncClientV2(api_key="any", base_url=base) as other:
        found = (await other.rerank(**ranking, max_tokens_per_doc=4096)).results
        check_ranks([(one.index, one.relevance_score) for one in found], base, len(TEXTS))


def langchain_embeddings(base: str) -> None:
    from langchain_openai import OpenAIEmbeddings

    model = OpenAIEmbeddings(model=MODEL, base_url=f"{base}/v1", api_key="any", check_embedding_ctx_length=False)
    check_vectors(model.embed_documents(TEXTS), plain(base, *TEXTS))
    check_vectors([model.embed_query(QUERY)], plain(base, QUERY))


async def llama_index_embeddings(base: str) -> None:
    from llama_index.embeddings.openai import OpenAIEmbedding

    model = OpenAIEmbedding(model_name=MODEL, api_base=f"{base}/v1", api_key="any")
    check_vectors(model.get_text_embedding_batch(TEXTS), plain(base, *TEXTS))
    check_vectors([await model.aget_query_embedding(QUERY)], plain(base, QUERY))


async def litellm_embeddings(base: str) -> None:
    import litellm

    # Its dimensions are sent only to models that it knows.
    for provider, url in (("openai", f"{base}/v1"), ("hosted_vllm", f"{base}/v1"), ("ollama", base)):
        known: dict[str, Any] = {"model": f"{provider}/{MODEL}", "api_base": url, "api_key": "any"}
        answer = litellm.embedding(input=TEXTS, **known)
        check_vectors([one["embedding"] for one in answer.data], plain(base, *TEXTS))
        check(answer.usage.prompt_tokens > len(TEXTS), answer.usage)
    for provider, url in (("hosted_vllm", base), ("cohere", f"{base}/v2/rerank"), ("jina_ai", f"{base}/v1/rerank")):
        known = {"model": f"{provider}/{MODEL}", "api_base": url, "api_key": "any"}
        found = litellm.rerank(query=QUERY, documents=TEXTS, top_n=2, **known).results
        check_ranks([(one["index"], one["relevance_score"]) for one in found], base, 2)


def open_webui(base: str) -> None:
    """Not its program: the requests of its retrieval, by its source, and what it reads of the answers."""
    data = post(f"{base}/v1/embeddings", input=TEXTS, model=MODEL)["data"]
    check_vectors([one["embedding"] for one in data], plain(base, *TEXTS))
    check_vectors(post(f"{base}/api/embed", input=TEXTS, model=f"{MODEL}:latest")["embeddings"], plain(base, *TEXTS))
    found = post(f"{base}/v1/rerank", model=MODEL, query=QUERY, documents=TEXTS, top_n=len(TEXTS))["results"]
    scores = [one["relevance_score"] for one in sorted(found, key=lambda result: result["index"])]
    check_numbers(scores, cosines(base))


PROGRAMS: dict[str, Callable[[str], Any]] = {
    program.__name__: program
    for program in (
        openai_embeddings, cohere, langchain_embeddings, llama_index_embeddings, litellm_embeddings, open_webui,
    )
}  # fmt: skip


if __name__ == "__main__":
    running = PROGRAMS[sys.argv[1]](sys.argv[2])
    if inspect.iscoroutine(running):
        asyncio.run(running)
