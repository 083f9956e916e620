"""/classify and /pooling."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tessera.pooling_params import PoolingParams
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine, numbers
from tests.server.pooling_models import CLASSIFIER, DIMENSIONS, EMBEDDER, RERANKER, pooling_engine
from tests.server.test_embeddings import ids, vector
from tests.server.test_errors import check_error
from tests.server.test_scores import answer


def logits(text: str, task: Any = "classify") -> np.ndarray:
    return numbers(ids(text), PoolingParams(task), CLASSIFIER)


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


async def test_the_likeliest_label_and_the_probability_of_each():
    async with in_process(pooling_engine(CLASSIFIER)) as api:
        found = await answer(api, "/classify", input=["Hi", "there"])
        assert found["object"] == "list"
        assert found["usage"]["prompt_tokens"] == len(ids("Hi")) + len(ids("there"))
        for index, text in enumerate(("Hi", "there")):
            one = found["data"][index]
            assert (one["index"], one["num_classes"]) == (index, 3)
            assert one["label"] == CLASSIFIER.labels[int(logits(text).argmax())]
            np.testing.assert_allclose(one["probs"], softmax(logits(text)), rtol=1e-5)
        (raw,) = (await answer(api, "/classify", input="Hi", use_activation=False))["data"]
        np.testing.assert_allclose(raw["probs"], logits("Hi"), rtol=1e-5)
        (chat,) = (await answer(api, "/classify", messages=[{"role": "user", "content": "Hi"}]))["data"]
        assert sum(chat["probs"]) == pytest.approx(1)


async def test_a_reranker_has_one_label():
    async with in_process(pooling_engine(RERANKER)) as api:
        (one,) = (await answer(api, "/classify", input="Hi"))["data"]
        assert (one["num_classes"], one["label"]) == (1, "LABEL_0")
        assert 0 < one["probs"][0] < 1


@pytest.mark.parametrize("engine", [FakeEngine(), pooling_engine(EMBEDDER)])
async def test_a_model_without_labels_says_what_it_does(engine):
    async with in_process(engine) as api:
        message = check_error(await api.post("/classify", {"input": "Hi"}), 400, "model")
        assert "classify" in message
        assert "--convert" not in message


async def test_pooling_by_task():
    async with in_process(pooling_engine()) as api:
        for task in (None, "embed"):
            found = await answer(api, "/pooling", input="Hi", task=task)
            assert [found["data"][0][name] for name in ("index", "object")] == [0, "pooling"]
            np.testing.assert_allclose(found["data"][0]["data"], vector("Hi"), rtol=1e-6)
        found = await answer(api, "/pooling", input=["Hi", "there"], task="token_embed", use_activation=False)
        for one, text in zip(found["data"], ("Hi", "there"), strict=True):
            rows = numbers(ids(text), PoolingParams("token_embed"), EMBEDDER)
            np.testing.assert_allclose(one["data"], rows, rtol=1e-6)
        encoded = await answer(
            api, "/pooling", input="Hi", task="token_embed", use_activation=False, encoding_format="base64"
        )
        raw = np.frombuffer(base64.b64decode(encoded["data"][0]["data"]), "<f4").reshape(-1, DIMENSIONS)
        np.testing.assert_allclose(raw, found["data"][0]["data"], rtol=1e-6)


async def test_pooling_by_the_tasks_of_a_classifier():
    async with in_process(pooling_engine(CLASSIFIER)) as api:
        found = await answer(api, "/pooling", input="Hi")
        np.testing.assert_allclose(found["data"][0]["data"], softmax(logits("Hi")), rtol=1e-5)
        found = await answer(api, "/pooling", input="Hi", task="token_classify")
        np.testing.assert_allclose(found["data"][0]["data"], softmax(logits("Hi", "token_classify")), rtol=1e-5)
        check_error(await api.post("/pooling", {"input": "Hi", "task": "embed"}), 400, "model")
        check_error(await api.post("/pooling", {"input": "Hi", "task": "plugin"}), 400, "task")
        check_error(await api.post("/pooling", {"input": "Hi", "dimensions": 4}), 400, "dimensions")


async def test_pooling_of_a_model_that_only_generates():
    async with in_process(FakeEngine()) as api:
        assert "--convert embed" in check_error(await api.post("/pooling", {"input": "Hi"}), 400, "model")
