"""Cohere's /v2/embed."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest

from tests.server.conftest import in_process
from tests.server.fake_engine import MAX_MODEL_LEN, MODEL
from tests.server.pooling_models import EMBEDDER, pooling_engine
from tests.server.test_embeddings import ids, vector
from tests.server.test_errors import check_error
from tests.server.test_scores import answer

PATH = "/v2/embed"
TEXTS = ["Hi", "there"]


async def test_vectors_in_each_type():
    async with in_process(pooling_engine(replace(EMBEDDER, matryoshka=None))) as api:
        types = ["float", "base64", "binary", "ubinary"]
        found = await answer(api, PATH, model=MODEL, texts=TEXTS, embedding_types=types, output_dimension=8)
        expected = np.stack([vector(text, 8) for text in TEXTS])
        assert set(found["embeddings"]) == set(types)
        np.testing.assert_allclose(found["embeddings"]["float"], expected, rtol=1e-6)
        for one, row in zip(found["embeddings"]["base64"], expected, strict=True):
            np.testing.assert_allclose(np.frombuffer(base64.b64decode(one), "<f4"), row, rtol=1e-6)
        bits = np.packbits(expected > 0, axis=1)
        assert found["embeddings"]["ubinary"] == bits.tolist()
        assert found["embeddings"]["binary"] == (bits.astype(int) - 128).tolist()
        assert found["texts"] == TEXTS
        assert found["response_type"] == "embeddings_by_type"
        assert found["meta"]["tokens"]["input_tokens"] == sum(len(ids(text)) for text in TEXTS)


async def test_floats_unless_the_request_says_so():
    async with in_process(pooling_engine()) as api:
        found = await answer(api, PATH, texts=TEXTS, input_type="search_query")
        assert set(found["embeddings"]) == {"float"}
        content = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
        assert (await answer(api, PATH, inputs=content))["embeddings"] == found["embeddings"]


async def test_the_type_of_input_chooses_an_instruction():
    pooler = replace(EMBEDDER, prompts={"query": "Q: ", "passage": "P: ", "clustering": "C: "})
    async with in_process(pooling_engine(pooler)) as api:
        for kind, text in (
            ("search_query", "Q: a"), ("search_document", "P: a"), ("clustering", "C: a"), ("classification", "a"),
            (None, "a"),
        ):  # fmt: skip
            await answer(api, PATH, texts=["a"], input_type=kind)
            assert api.engine.pooled[-1].prompt.ids.tolist() == ids(text)


async def test_a_text_that_is_too_long_is_cut_unless_the_request_says_no():
    text = "ab" * MAX_MODEL_LEN
    async with in_process(pooling_engine()) as api:
        for fields, kept in (
            ({}, text[: MAX_MODEL_LEN - 1]),
            ({"truncate": "START"}, text[1 - MAX_MODEL_LEN :]),
            ({"truncate": "END", "max_tokens": 5}, "abab"),
        ):
            await answer(api, PATH, texts=[text], **fields)
            assert api.engine.pooled[-1].prompt.ids.tolist() == ids(kept)
        check_error(
            await api.post(PATH, {"texts": ["a", text], "truncate": "NONE"}), 400, "texts[1]", "context_length_exceeded"
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a"], "inputs": [{"content": []}]}, "texts"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "inputs[0]"),
        ({"texts": ["a"], "images": ["x"]}, "texts"),
        ({"images": ["x"]}, "images[0]"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
        ({"texts": ["a"], "truncate": "NONE", "max_tokens": 5}, "max_tokens"),
        ({"texts": ["a"], "max_tokens": 0}, "max_tokens"),
        ({"texts": ["a"], "embedding_types": ["float", "int8"]}, "embedding_types"),
        ({"texts": ["a"], "embedding_types": ["binary"]}, "embedding_types"),
        ({"texts": ["a"], "output_dimension": 5}, "dimensions"),
        ({"texts": ["a"], "input_type": "image"}, "input_type"),
    ],
)
async def test_a_request_that_is_wrong_is_named(fields, param):
    async with in_process(pooling_engine()) as api:
        check_error(await api.post(PATH, fields), 400, param)
        assert not api.engine.pooled
