"""The server over an engine in its own process, with an executor that needs no model."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import re
import signal
import socket
import time
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tessera.config import Supervision
from tessera.engine.async_engine import AsyncEngine
from tessera.server.serve import serve
from tessera.server.settings import ServerSettings
from tests.engine.fakes import EXECUTOR, answer, config
from tests.server.conftest import started
from tests.server.leaving import Leaving
from tests.server.sse import check_completion, data_of
from tests.server.test_lifecycle import until

pytestmark = pytest.mark.usefixtures("fakes_in_the_engines_process")

SETTINGS = ServerSettings(served_model_names=("fake",), drain_seconds=5)
PROMPT = [3, 1, 4, 1, 5]
LONG = {"model": "fake", "prompt": PROMPT, "max_tokens": 2000, "stream": True, "return_token_ids": True}


@asynccontextmanager
async def serving(behaviour="", supervision=None, log_format="text", settings=SETTINGS, **scheduler):
    made = dataclasses.replace(config(behaviour, **scheduler), log_format=log_format)
    engine = await AsyncEngine.start(made, text=None, executor=EXECUTOR, supervision=supervision)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    task = asyncio.create_task(serve(started(engine, settings), listener, settings))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
        try:
            yield engine, client, task
        except BaseException:
            await stopped(task)  # or the tests after this one would have its server and engine beside theirs
            raise
    assert task.done()


async def stopped(task, seconds=120):
    if task.done():
        return task.result()
    os.kill(os.getpid(), signal.SIGTERM)
    return await asyncio.wait_for(task, seconds)


@pytest.mark.parametrize("shared", [False, True])
async def test_a_key_sees_the_cached_prefixes_of_another_only_if_they_are_shared(shared):
    settings = dataclasses.replace(SETTINGS, api_keys=("a", "b"), shared_prefix_cache=shared)
    async with serving(settings=settings) as (_, client, task):

        async def cached(key, **fields):
            body = {"model": "fake", "prompt": PROMPT * 20, "max_tokens": 1, **fields}
            answer = await client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert await cached("a") == 0
        own = await cached("a")
        assert own > 0
        assert await cached("b") == (own if shared else 0)
        assert await cached("b", cache_salt="key 0\n") == 0
        assert await cached("b") == own
        assert await stopped(task) == 0


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
        too_long = await client.post("/v1/completions", json={**body, "prompt": [7] * 5000})
        assert too_long.json()["error"]["code"] == "context_length_exceeded"
        assert (await client.post("/v1/completions", json={**body, "prompt": [64]})).status_code == 400
        assert (await client.post("/v1/completions", json={**body, "prompt": [-1]})).status_code == 400
        assert await stopped(task) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(engine.info.pid, 0)


async def test_the_server_answers_while_it_writes_very_many_log_probabilities():
    """By count, since a stall of the machine would count as the server's: benchmarks/liveness.py says how soon. That
    what is large is made on another thread is for test_assembly.py."""
    settings = dataclasses.replace(SETTINGS, drain_seconds=0)
    async with serving("brisk", settings=settings, max_num_seqs=128) as (_, client, task):

        def post(stream):
            body = {**LONG, "n": 128, "logprobs": 20, "max_tokens": 60, "temperature": 1.0, "stream": stream}
            head = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{client.base_url}/v1/completions", json.dumps(body).encode(), head)
            with urllib.request.urlopen(request, timeout=60) as response:  # a thread's: it takes little of this loop
                response.read()
                return response.status

        requests = [asyncio.create_task(asyncio.to_thread(post, stream)) for stream in (True, False)]
        answers = 0
        while not all(request.done() for request in requests):
            assert (await client.get("/livez")).status_code == 200
            answers += 1
        assert [await request for request in requests] == [200, 200]
        assert answers > 5
        assert await stopped(task) in (0, 1)


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_lines_of_both_processes_join_by_the_header_even_where_two_bear_it(caplog, capfd, log_format):
    caplog.set_level(logging.DEBUG, "tessera")
    async with serving("brisk", log_format=log_format) as (_, client, task):
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": 8}
        posts = [client.post("/v1/completions", json=body, headers={"X-Request-Id": "abc-1"}) for _ in range(2)]
        both = await asyncio.gather(*posts)
        assert [response.json()["id"] for response in both] == ["cmpl-abc-1"] * 2
        assert [response.headers["x-request-id"] for response in both] == ["abc-1"] * 2
        assert await stopped(task) == 0
    lines = capfd.readouterr().err.splitlines()
    for name in ("cmpl-abc-1-0-0", "cmpl-abc-1-1-0"):
        told = (f'"request_id": "{name}", "message": ' + '"{}"' if log_format == "json" else f"[{name}] {{}}").format
        assert [sum(told(said) in line for line in lines) for said in ("5 prompt tokens", "ended: length")] == [1, 1]
    assert [r.request_id for r in caplog.records if r.name == "tessera.server.access"] == ["abc-1"] * 2


async def test_kill_9_of_the_engine_under_streams():
    """Of 12 streams 8 have had a token: they end with an error; the others are answered by the next engine."""
    async with serving("slow", max_num_seqs=8) as (engine, client, task):
        began = [asyncio.create_task(client.post("/v1/completions", json=LONG)) for _ in range(8)]
        await until(lambda: engine.metrics.stats.counters.generation_tokens > 40)
        short = {**LONG, "max_tokens": 8}
        waiting = [asyncio.create_task(client.post("/v1/completions", json=short)) for _ in range(4)]
        whole = asyncio.create_task(client.post("/v1/completions", json={**short, "stream": False, "n": 2}))
        await until(lambda: engine.metrics.stats.num_waiting == 6)
        os.kill(engine.info.pid, signal.SIGKILL)
        killed = time.monotonic()
        await until(lambda: not engine.health.alive)
        refused = await client.post("/v1/completions", json=short)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await client.get("/readyz")).json() == {"status": "engine restarting"}
        assert [(await client.get(path)).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        for response in await asyncio.gather(*began):
            events = data_of(response.text)
            assert json.loads(events[-2])["error"]["type"] == "engine_error"
            assert events[-1] == "[DONE]"
        assert time.monotonic() - killed < 20
        for response in await asyncio.gather(*waiting):
            chunks = [chunk["choices"][0] for chunk in check_completion(response.text)]
            assert [token for choice in chunks for token in choice.get("token_ids", ())] == answer(PROMPT, 8)
        choices = (await whole).json()["choices"]
        assert [choice["token_ids"] for choice in choices] == [answer(PROMPT, 8)] * 2
        assert (await client.get("/readyz")).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert 'tessera:engine_restarts_total{model_name="fake"} 1' in metrics
        assert 'tessera:replayed_requests_total{model_name="fake"} 5' in metrics
        assert await stopped(task) == 0


async def test_an_engine_that_died_too_often_ends_the_server_with_4(caplog):
    async with serving("slow", Supervision(max_restarts=0)) as (engine, client, task):
        asking = asyncio.create_task(client.post("/v1/completions", json={**LONG, "stream": False}))
        await until(lambda: engine.metrics.stats.num_running == 1)
        os.kill(engine.info.pid, signal.SIGKILL)
        assert (await asking).status_code == 503
        assert await asyncio.wait_for(task, 20) == 4
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if line.startswith("The server is shutting down.")]
    assert "The engine died once within 300 s. The engine's process was killed" in line


async def test_sigterm_while_another_engine_starts_drains_what_waits_for_it(tmp_path):
    async with serving(f"slow hang-at-3 once={tmp_path / 'mark'}") as (engine, client, task):
        asking = asyncio.create_task(client.post("/v1/completions", json={**LONG, "stream": False, "max_tokens": 8}))
        await until(lambda: engine.metrics.stats.num_running == 1)
        os.kill(engine.info.pid, signal.SIGKILL)
        await until(lambda: engine.health.restarting)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await asking).json()["choices"][0]["token_ids"] == answer(PROMPT, 8)
        assert await asyncio.wait_for(task, 20) == 0


async def test_two_signals_end_a_server_whose_engine_does_not_come_up(tmp_path):
    async with serving(f"hang-load later={tmp_path / 'mark'}") as (engine, client, task):
        asking = asyncio.create_task(client.post("/v1/completions", json={**LONG, "stream": False}))
        await until(lambda: engine.metrics.stats.num_running == 1)
        os.kill(engine.info.pid, signal.SIGKILL)
        await until(lambda: engine.health.restarting)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert await stopped(task) == 1
        assert (await asking).status_code == 503


async def test_a_hang_is_seen_by_health_before_it_ends(tmp_path):
    behaviour = f"slow hang-at-3 once={tmp_path / 'mark'}"
    async with serving(behaviour, Supervision(stall_seconds=3)) as (engine, client, task):
        asking = asyncio.create_task(client.post("/v1/completions", json={**LONG, "stream": False, "max_tokens": 8}))
        await until(lambda: engine.health.stalled)
        assert [(await client.get(path)).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        assert (await client.get("/readyz")).json() == {"status": "engine stalled"}
        assert (await asking).json()["choices"][0]["token_ids"] == answer(PROMPT, 8)
        assert (await client.get("/readyz")).status_code == 200
        assert await stopped(task) == 0


def descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.nightly)])
async def test_streams_aborted_at_random_moments_leave_nothing(count):
    """Over a model: tests/e2e/test_aborted.py."""

    def asking(draw):
        return {"model": "fake", "prompt": [draw.randrange(1, 61), 7]}

    async def at_rest():
        """What is held when nothing is asked."""
        await until(lambda: not (engine.metrics.stats.num_running or engine.metrics.stats.num_waiting), 30)
        text = (await client.get("/metrics")).text
        (tasks,) = re.findall(r"^tessera:asyncio_tasks (\d+)$", text, re.MULTILINE)
        return int(tasks), descriptors(os.getpid()), descriptors(engine.info.pid)

    async with serving("brisk", max_num_seqs=32) as (engine, client, task):
        leaving = Leaving(client.base_url.port, asking, at_once=48)
        await leaving.visits(8)
        await asyncio.sleep(0.5)
        before = await at_rest()
        await leaving.visits(count)
        await asyncio.sleep(0.5)  # connections close one after the other
        after = await at_rest()
        assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)
        assert engine.metrics.stats.kv_usage == 0.0
        assert engine.metrics.request_success["abort"] > count * 0.8
        assert engine.metrics.request_success["error"] == 0
        assert await stopped(task) == 0


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


async def test_a_beam_search_whose_client_leaves_ends_within_a_few_steps():
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 2000, "use_beam_search": True, "n": 8}
    async with serving("slow") as (engine, client, task):
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: engine.metrics.stats.counters.requests > 8)
        asking.cancel()
        requests = engine.metrics.stats.counters.requests
        # Between two steps of a search nothing runs either: it has ended when nothing more has been asked for a while.
        quiet = 0
        while quiet < 20:
            await asyncio.sleep(0.02)
            seen, requests = requests, engine.metrics.stats.counters.requests
            quiet = quiet + 1 if requests == seen and not engine.metrics.stats.num_running else 0
            assert requests < 2000
        assert await stopped(task) == 0


async def test_a_flood_under_one_key_leaves_another_its_share_whatever_it_says():
    """400 tokens of 20 ms an answer: whoever waits for one of the flood waits for seconds."""
    keys = dataclasses.replace(SETTINGS, api_keys=("key-of-one", "key-of-two"))

    async def post(key, user, max_tokens):
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": max_tokens, "user": user, "cache_salt": user}
        return await client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})

    async with serving("slow", settings=keys, policy="fair", max_num_seqs=4) as (engine, client, task):
        flood = [asyncio.create_task(post("key-of-one", f"user {number}", 400)) for number in range(16)]
        await until(lambda: engine.metrics.stats.num_waiting == 12)
        modest = await asyncio.gather(*(post("key-of-two", "user 0", 8) for _ in range(2)))
        assert [response.status_code for response in modest] == [200, 200]
        assert not any(asked.done() for asked in flood)
        assert engine.metrics.stats.counters.preemptions >= 2
        for asked in flood:
            asked.cancel()
        await asyncio.wait(flood)
        assert await stopped(task) == 0
