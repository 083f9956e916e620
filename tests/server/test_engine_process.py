"""The server over an engine in its own process, with an executor that needs no model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tessera.engine.async_engine import AsyncEngine
from tessera.server.app import create_app
from tessera.server.serve import serve
from tessera.server.settings import ServerSettings
from tests.engine.fakes import EXECUTOR, answer, config
from tests.server.sse import check_completion, data_of
from tests.server.test_lifecycle import until

SETTINGS = ServerSettings(served_model_names=("fake",), drain_seconds=5)
PROMPT = [3, 1, 4, 1, 5]
LONG = {"model": "fake", "prompt": PROMPT, "max_tokens": 2000, "stream": True, "return_token_ids": True}


@pytest.fixture(autouse=True)
def _fakes_are_found(monkeypatch):
    """The engine's process imports the executor from these tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


@asynccontextmanager
async def serving(behaviour=""):
    engine = await AsyncEngine.start(config(behaviour), tokenizer=None, executor=EXECUTOR)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    task = asyncio.create_task(serve(engine, create_app(engine, SETTINGS), listener, SETTINGS))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=10) as client:
        yield engine, client, task
    assert task.done()


async def stopped(task, seconds=5):
    os.kill(os.getpid(), signal.SIGTERM)
    return await asyncio.wait_for(task, seconds)


async def test_answers_whole_and_streamed_then_ends_in_order():
    async with serving() as (engine, client, task):
        body = {"model": "fake", "prompt": [PROMPT, [7]], "max_tokens": 8, "return_token_ids": True, "logprobs": 2}
        whole = (await client.post("/v1/completions", json=body)).json()
        assert [choice["token_ids"] for choice in whole["choices"]] == [answer(PROMPT, 8), answer([7], 8)]
        assert len(whole["choices"][0]["logprobs"]["tokens"]) == 8
        assert whole["usage"]["completion_tokens"] == 16
        streamed = await client.post("/v1/completions", json={**body, "stream": True})
        chunks = [chunk["choices"][0] for chunk in check_completion(streamed.text, choices=2)]
        tokens = [token for choice in chunks if choice["index"] == 0 for token in choice.get("token_ids", ())]
        assert tokens == answer(PROMPT, 8)
        assert (await client.get("/readyz")).status_code == 200
        assert "tessera:generation_tokens_total" in (await client.get("/metrics")).text
        too_long = await client.post("/v1/completions", json={**body, "prompt": PROMPT, "max_tokens": 5000})
        assert too_long.json()["error"]["code"] == "context_length_exceeded"
        assert (await client.post("/v1/completions", json={**body, "prompt": [64]})).status_code == 400
        assert (await client.post("/v1/completions", json={**body, "prompt": [-1]})).status_code == 400
        assert await stopped(task) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(engine.info.pid, 0)


async def test_kill_9_of_the_engine_under_streams():
    async with serving("slow") as (engine, client, task):
        streams = [asyncio.create_task(client.post("/v1/completions", json=LONG)) for _ in range(8)]
        await until(lambda: engine.metrics.stats.counters.generation_tokens > 40)
        os.kill(engine.info.pid, signal.SIGKILL)
        killed = time.monotonic()
        bodies = [response.text for response in await asyncio.gather(*streams)]
        assert time.monotonic() - killed < 1.5
        for body in bodies:
            events = data_of(body)
            assert json.loads(events[-2])["error"]["type"] == "engine_error"
            assert events[-1] == "[DONE]"
        assert await asyncio.wait_for(task, 5) == 4


async def test_a_client_that_leaves_frees_its_row_within_a_few_steps():
    async with serving("slow") as (engine, client, task):
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json={**LONG, "stream": False}, timeout=0.3)
        stats = engine.metrics.stats
        await until(lambda: engine.metrics.stats is not stats and not engine.metrics.stats.num_running)
        # A step is 20 ms: had it gone on until the engine's next sign of life, there were many more.
        assert engine.metrics.stats.counters.generation_tokens <= 0.3 / 0.02 + 5
        assert engine.metrics.request_success["abort"] == 1
        assert await stopped(task) == 0
