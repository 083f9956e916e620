"""/score and /rerank, with models that read pairs, embed texts or embed tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tessera.pooling_params import PoolingParams
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import Api, in_process
from tests.server.fake_engine import MAX_MODEL_LEN, FakeEngine, numbers
from tests.server.pooling_models import CLASSIFIER, EMBEDDER, RERANKER, TOKENS, pooling_engine
from tests.server.test_embeddings import ids, vector
from tests.server.test_errors import check_error

DOCUMENTS = ["Paris", "Berlin is large", "Bordeaux"]
QUERY = "Where?"


def pair_ids(first: str, second: str) -> list[int]:
    """The template of the scripted tokenizer for pairs."""
    engine = FakeEngine()
    assert engine.tokenizer is not None
    return engine.tokenizer.encode(first) + engine.tokenizer.encode(second, add_special_tokens=False)


def pair_score(first: str, second: str, *, raw: bool = False) -> float:
    (value,) = numbers(pair_ids(first, second), PoolingParams("classify"), RERANKER)
    return float(value) if raw else float(1 / (1 + np.exp(-value)))


def cosine(first: str, second: str) -> float:
    return float(vector(first) @ vector(second))


def max_similarity(first: str, second: str) -> float:
    one, two = (numbers(ids(text), PoolingParams("token_embed"), TOKENS) for text in (first, second))
    one, two = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (one, two))
    return float((one @ two.T).max(axis=1).sum())


MODELS = {"pairs": (RERANKER, pair_score), "vectors": (EMBEDDER, cosine), "tokens": (TOKENS, max_similarity)}


async def answer(api: Api, path: str, **fields: Any) -> Any:
    response = await api.post(path, fields)
    assert response.status_code == 200, response.text
    return response.json()


async def scores(api: Api, **fields: Any) -> list[float]:
    data = (await answer(api, "/score", **fields))["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["score"] for one in data]


# ---- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
async def test_one_with_one_one_with_each_and_each_with_its_own(kind):
    pooler, score = MODELS[kind]
    async with in_process(pooling_engine(pooler)) as api:
        assert await scores(api, text_1=QUERY, text_2="Paris") == pytest.approx([score(QUERY, "Paris")])
        for first in (QUERY, [QUERY]):
            assert await scores(api, text_1=first, text_2=DOCUMENTS) == pytest.approx(
                [score(QUERY, text) for text in DOCUMENTS]
            )
        several = ["a", "bc", "def"]
        assert await scores(api, text_1=several, text_2=DOCUMENTS) == pytest.approx(
            [score(one, two) for one, two in zip(several, DOCUMENTS, strict=True)]
        )


async def test_the_texts_have_several_names():
    async with in_process(pooling_engine(RERANKER)) as api:
        for one, two in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            assert await scores(api, **{one: QUERY, two: DOCUMENTS}) == pytest.approx(
                [pair_score(QUERY, text) for text in DOCUMENTS]
            )
        for fields in ({}, {"text_1": "a"}, {"text_1": "a", "documents": "b"}, {"queries": "a", "text_2": "b"}):
            assert (await api.post("/score", fields)).status_code == 400


async def test_a_query_is_embedded_once():
    async with in_process(pooling_engine()) as api:
        found = await answer(api, "/v1/score", text_1=QUERY, text_2=DOCUMENTS)
        assert len(api.engine.pooled) == 1 + len(DOCUMENTS)
        tokens = sum(len(call.prompt.ids) for call in api.engine.pooled)
        assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        assert found["object"] == "list"
        assert found["data"][0]["object"] == "score"


async def test_a_score_may_be_left_as_it_is():
    async with in_process(pooling_engine(RERANKER)) as api:
        assert await scores(api, text_1="a", text_2="b", use_activation=False) == pytest.approx(
            [pair_score("a", "b", raw=True)]
        )


@pytest.mark.parametrize("checkpoint", [{}, {"type_vocab_size": 1}, {"type_vocab_size": 2}])
async def test_a_model_with_token_types_is_told_where_the_second_text_begins(checkpoint):
    async with in_process(pooling_engine(RERANKER, checkpoint=checkpoint)) as api:
        await scores(api, text_1="abc", text_2="de")
        (call,) = api.engine.pooled
        types = checkpoint.get("type_vocab_size", 0) > 1
        assert call.prompt.columns == ({"type_boundary": len(ids("abc"))} if types else {})


async def test_the_longer_text_of_a_pair_is_cut_first():
    async with in_process(pooling_engine(RERANKER)) as api:
        check_error(
            await api.post("/score", {"text_1": ["a", "a"], "text_2": ["b", "x" * MAX_MODEL_LEN]}), 400, "text_2[1]",
            code="context_length_exceeded",
        )  # fmt: skip
        await scores(api, text_1="abc", text_2="x" * MAX_MODEL_LEN, truncate_prompt_tokens=-1)
        await scores(api, text_1="abc", text_2="defgh", truncate_prompt_tokens=7)
        assert [call.prompt.ids.tolist() for call in api.engine.pooled] == [
            pair_ids("abc", "x" * (MAX_MODEL_LEN - 4)),
            pair_ids("abc", "def"),
        ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text_1": "", "text_2": "b"}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "text_1"),
        ({"text_1": "a", "text_2": ["b"] * 5}, "text_2"),
        ({"text_1": "a" * 30, "text_2": ["b", "c", "d"]}, "text_2"),
    ],
)
async def test_texts_that_are_wrong_are_named(fields, param):
    settings = ServerSettings(limits=Limits(pooled_inputs=4, pair_chars=90))
    async with in_process(pooling_engine(RERANKER), settings) as api:
        check_error(await api.post("/score", fields), 400, param)
        assert not api.engine.pooled


async def test_a_model_that_cannot_score_says_what_it_does():
    async with in_process(FakeEngine()) as api:
        assert "/v1/chat/completions" in check_error(
            await api.post("/score", {"text_1": "a", "text_2": "b"}), 400, "model"
        )
    async with in_process(pooling_engine(CLASSIFIER)) as api:
        assert "/classify" in check_error(await api.post("/score", {"text_1": "a", "text_2": "b"}), 400, "model")


# ---- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_the_best_document_comes_first(kind, path):
    pooler, score = MODELS[kind]
    async with in_process(pooling_engine(pooler)) as api:
        found = await answer(api, path, query=QUERY, documents=["Paris", {"text": DOCUMENTS[1]}, DOCUMENTS[2]])
        expected = sorted(((score(QUERY, text), index) for index, text in enumerate(DOCUMENTS)), reverse=True)
        assert [one["index"] for one in found["results"]] == [index for _, index in expected]
        assert [one["relevance_score"] for one in found["results"]] == pytest.approx([value for value, _ in expected])
        assert [one["document"] for one in found["results"]] == [{"text": DOCUMENTS[index]} for _, index in expected]
        assert found["usage"]["total_tokens"] == found["meta"]["tokens"]["input_tokens"] > 0
        assert found["meta"]["api_version"] == {"version": "2"}
        assert found["id"].startswith("rerank-")


async def test_some_of_the_documents():
    async with in_process(pooling_engine(RERANKER)) as api:
        fields = {"query": QUERY, "documents": DOCUMENTS, "return_documents": False}
        every = (await answer(api, "/rerank", **fields))["results"]
        assert len(every) == 3
        assert not any("document" in one for one in every)
        for top, count in ((1, 1), (2, 2), (3, 3), (9, 3), (0, 3)):
            assert (await answer(api, "/rerank", top_n=top, **fields))["results"] == every[:count]
        check_error(await api.post("/rerank", {**fields, "top_n": -1}), 400, "top_n")


async def test_a_limit_of_documents_that_the_model_does_not_reach_cuts_those_that_it_does_not_take():
    """As Cohere's clients send it, whose own models take more."""
    fields = {"query": "abc", "documents": ["x" * MAX_MODEL_LEN], "max_tokens_per_doc": 4096}
    async with in_process(pooling_engine(RERANKER)) as api:
        await answer(api, "/rerank", **fields)
        await answer(api, "/rerank", **fields, truncate_prompt_tokens=7)
        assert [call.prompt.ids.tolist() for call in api.engine.pooled] == [
            pair_ids("abc", "x" * (MAX_MODEL_LEN - 4)), pair_ids("abc", "xxx"),
        ]  # fmt: skip
        del fields["max_tokens_per_doc"]
        check_error(await api.post("/rerank", fields), 400, "documents[0]", "context_length_exceeded")


async def test_documents_of_the_same_score_stay_in_order():
    async with in_process(pooling_engine(RERANKER)) as api:
        found = await answer(api, "/rerank", query=QUERY, documents=["ab", "ba", "ab"])
        assert [one["index"] for one in found["results"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["b", ""]}, "documents[1]"),
        ({"query": "a", "documents": ["b", {"text": ""}]}, "documents[1]"),
        ({"query": "a", "documents": ["b"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ({"query": "a"}, "documents"),
    ],
)
async def test_a_request_that_is_wrong_is_named(fields, param):
    for pooler in (RERANKER, EMBEDDER):
        async with in_process(pooling_engine(pooler)) as api:
            check_error(await api.post("/rerank", fields), 400, param)
            assert not api.engine.pooled


async def test_a_search_has_the_model_s_instructions():
    pooler = replace(EMBEDDER, prompts={"query": "Q: ", "passage": "P: "})
    async with in_process(pooling_engine(pooler)) as api:
        for path, fields in (
            ("/rerank", {"query": "a", "documents": ["b"]}),
            ("/score", {"queries": "a", "documents": ["b"]}),
            ("/score", {"text_1": "a", "text_2": ["b"]}),
        ):
            await answer(api, path, **fields)
            found = [call.prompt.ids.tolist() for call in api.engine.pooled[-2:]]
            assert found == ([ids("a"), ids("b")] if "text_1" in fields else [ids("Q: a"), ids("P: b")])
