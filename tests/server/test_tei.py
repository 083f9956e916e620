"""The routes of Text Embeddings Inference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tessera.pooling_params import PoolingParams
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MAX_MODEL_LEN, FakeEngine, numbers
from tests.server.pooling_models import CLASSIFIER, EMBEDDER, RERANKER, TOKENS, pooling_engine
from tests.server.test_classes import logits, softmax
from tests.server.test_embeddings import ids, vector
from tests.server.test_errors import check_error
from tests.server.test_scores import DOCUMENTS, QUERY, answer, cosine, pair_ids, pair_score


async def test_vectors():
    async with in_process(pooling_engine(replace(EMBEDDER, prompts={"query": "Q: "}))) as api:
        np.testing.assert_allclose(await answer(api, "/embed", inputs="Hi"), [vector("Hi")], rtol=1e-6)
        np.testing.assert_allclose(
            await answer(api, "/embed", inputs=["Hi", "there"], normalize=False),
            [vector(text, normalized=False) for text in ("Hi", "there")],
            rtol=1e-6,
        )
        np.testing.assert_allclose(await answer(api, "/embed", inputs=ids("Hi")), [vector("Hi")], rtol=1e-6)
        np.testing.assert_allclose(
            await answer(api, "/embed", inputs="Hi", prompt_name="query", dimensions=4), [vector("Q: Hi", 4)], rtol=1e-6
        )
        check_error(await api.post("/embed", {"inputs": "Hi", "prompt_name": "other"}), 400, "prompt_name")
        check_error(await api.post("/embed", {"inputs": ["Hi", ""]}), 400, "inputs[1]")
        check_error(await api.post("/embed", {}), 400, "inputs")


async def test_a_text_that_is_too_long_is_cut_if_the_request_says_so():
    text = "ab" * MAX_MODEL_LEN
    async with in_process(pooling_engine()) as api:
        check_error(await api.post("/embed", {"inputs": text}), 400, "inputs", "context_length_exceeded")
        for side, kept in (("Right", text[: MAX_MODEL_LEN - 1]), ("Left", text[1 - MAX_MODEL_LEN :])):
            await answer(api, "/embed", inputs=text, truncate=True, truncation_direction=side)
            assert api.engine.pooled[-1].prompt.ids.tolist() == ids(kept)
        wrong = {"inputs": text, "truncate": True, "truncation_direction": "left"}
        check_error(await api.post("/embed", wrong), 400, "truncation_direction")


@pytest.mark.parametrize("pooler", [EMBEDDER, TOKENS])
async def test_a_vector_of_each_token(pooler):
    async with in_process(pooling_engine(pooler)) as api:
        found = await answer(api, "/embed_all", inputs=["Hi", "there"])
        for rows, text in zip(found, ("Hi", "there"), strict=True):
            np.testing.assert_allclose(rows, numbers(ids(text), PoolingParams("token_embed"), pooler), rtol=1e-6)


async def test_similarity():
    async with in_process(pooling_engine()) as api:
        inputs = {"source_sentence": QUERY, "sentences": DOCUMENTS}
        found = await answer(api, "/similarity", inputs=inputs)
        assert found == pytest.approx([cosine(QUERY, text) for text in DOCUMENTS])
        wrong = {"source_sentence": QUERY, "sentences": ["a", ""]}
        check_error(await api.post("/similarity", {"inputs": wrong}), 400, "inputs.sentences[1]")


async def test_ranks():
    async with in_process(pooling_engine(RERANKER)) as api:
        for raw in (False, True):
            scores = [pair_score(QUERY, text, raw=raw) for text in DOCUMENTS]
            order = sorted(range(len(DOCUMENTS)), key=lambda index: -scores[index])
            found = await answer(api, "/rerank", query=QUERY, texts=DOCUMENTS, raw_scores=raw, return_text=raw)
            assert [one["index"] for one in found] == order
            assert [one["score"] for one in found] == pytest.approx([scores[index] for index in order])
            assert [one.get("text") for one in found] == [DOCUMENTS[index] if raw else None for index in order]
        check_error(await api.post("/rerank", {"query": QUERY}), 400, "documents")
        check_error(await api.post("/rerank", {"query": QUERY, "texts": []}), 400, "texts")


async def test_predictions():
    async with in_process(pooling_engine(CLASSIFIER)) as api:
        for inputs in ("Hi", ["Hi"]):
            found = await answer(api, "/predict", inputs=inputs)
            expected = sorted(zip(softmax(logits("Hi")), CLASSIFIER.labels, strict=True), reverse=True)
            assert [one["label"] for one in found] == [label for _, label in expected]
            assert [one["score"] for one in found] == pytest.approx([score for score, _ in expected], rel=1e-5)
        (pair,) = [await answer(api, "/predict", inputs=["a", "b"], raw_scores=True)]
        raw = numbers(pair_ids("a", "b"), PoolingParams("classify"), CLASSIFIER)
        assert {one["label"]: one["score"] for one in pair} == pytest.approx(
            dict(zip(CLASSIFIER.labels, raw.tolist(), strict=True))
        )
        several = await answer(api, "/predict", inputs=[["Hi"], ["a", "b"]], raw_scores=True)
        assert several[0] == await answer(api, "/predict", inputs="Hi", raw_scores=True)
        assert several[1] == pair


@pytest.mark.parametrize(
    ("inputs", "param"),
    [
        ("", "inputs"),
        ([], "inputs"),
        (["a", "b", "c"], "inputs"),
        ([["a"], []], "inputs[1]"),
        ([["a"], ["b", ""]], "inputs[1]"),
        ([["a"]] * 5, "inputs"),
        ([["a"], [5]], "inputs[1][0]"),
    ],
)
async def test_inputs_that_are_wrong_are_named(inputs, param):
    settings = ServerSettings(limits=Limits(pooled_inputs=4))
    async with in_process(pooling_engine(CLASSIFIER), settings) as api:
        check_error(await api.post("/predict", {"inputs": inputs}), 400, param)
        assert not api.engine.pooled


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/predict"])
async def test_a_model_that_only_generates_says_so(path):
    async with in_process(FakeEngine()) as api:
        assert "/v1/chat/completions" in check_error(await api.post(path, {"inputs": "Hi"}), 400, "model")
