"""Ollama's routes for vectors, by its own client."""

from __future__ import annotations

import numpy as np
import ollama

from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MAX_MODEL_LEN, MODEL, FakeEngine
from tests.server.pooling_models import pooling_engine
from tests.server.test_embeddings import ids, vector


async def test_its_client_embeds():
    async with on_socket(pooling_engine()) as server, ollama.AsyncClient(host=server.url) as client:
        found = await client.embed(model=f"{MODEL}:latest", input=["Hi", "there"], keep_alive="5m")
        np.testing.assert_allclose(found.embeddings, [vector("Hi"), vector("there")], rtol=1e-6)
        assert found.prompt_eval_count == len(ids("Hi")) + len(ids("there"))
        assert found.model == MODEL
        one = await client.embed(model=MODEL, input="Hi", dimensions=4)
        np.testing.assert_allclose(one.embeddings, [vector("Hi", 4)], rtol=1e-6)
        old = await client.embeddings(model=MODEL, prompt="Hi")
        np.testing.assert_allclose(old.embedding, vector("Hi"), rtol=1e-6)
        assert (await client.show(MODEL)).capabilities == ["embedding"]


async def test_a_text_that_is_too_long_is_cut_unless_the_request_says_no():
    text = "ab" * MAX_MODEL_LEN
    async with in_process(pooling_engine()) as api:
        assert (await api.post("/api/embed", {"model": MODEL, "input": text})).status_code == 200
        assert (await api.post("/api/embeddings", {"model": MODEL, "prompt": text})).status_code == 200
        assert {len(call.prompt.ids) for call in api.engine.pooled} == {MAX_MODEL_LEN}
        refused = await api.post("/api/embed", {"model": MODEL, "input": ["a", text], "truncate": False})
        assert refused.status_code == 400
        assert refused.json()["error"].startswith("input[1]")


async def test_what_is_wrong_is_said_in_ollama_s_form():
    async with in_process(pooling_engine()) as api:
        for body in ({"input": ""}, {"input": []}, {"input": [1, 2]}, {"input": ["a", ""]}):
            response = await api.post("/api/embed", {"model": MODEL, **body})
            assert response.status_code == 400
            assert set(response.json()) == {"error"}
        assert (await api.post("/api/embeddings", {"model": MODEL, "prompt": ""})).status_code == 400
    async with in_process(FakeEngine()) as api:
        refused = await api.post("/api/embed", {"model": MODEL, "input": "Hi"})
        assert "--convert embed" in refused.json()["error"]
