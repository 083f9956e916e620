"""What an operator sets: limits of answers, load, comments in silent streams, usage for all, a proxy's prefix."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import httpx
import openai
import pytest

from tessera.config import SchedulerConfig
from tessera.errors import OverloadedError
from tessera.server.generation.output import merged
from tessera.server.limits import AnswerAdmission, RateLimitError, TenantShares
from tessera.server.settings import AnswerLimits, Limits, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MAX_MODEL_LEN, MODEL, FakeEngine, FakeInfo, Script
from tests.server.sse import check_chat, check_completion
from tests.server.test_errors import check_error
from tests.server.test_lifecycle import until

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
CHAT_PROMPT = len("<user>Hi</user><assistant>")


# ---- how long answers may be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "asked", "given"),
    [
        (AnswerLimits(), None, None),
        (AnswerLimits(), 100, 100),
        (AnswerLimits(default=50), None, 50),
        (AnswerLimits(default=50), 100, 100),
        (AnswerLimits(default=10**6), None, MAX_MODEL_LEN - CHAT_PROMPT),
        (AnswerLimits(maximum=20), None, 20),
        (AnswerLimits(maximum=20), 100, 20),
        (AnswerLimits(maximum=20), 7, 7),
        (AnswerLimits(maximum=10**6), None, MAX_MODEL_LEN - CHAT_PROMPT),
        (AnswerLimits(default=50, maximum=20), None, 20),
        (AnswerLimits(default=50, maximum=80), 100, 80),
    ],
)
async def test_tokens_of_an_answer(limits, asked, given):
    async with in_process(FakeEngine(), ServerSettings(answers=limits)) as api:
        for name in ("max_tokens", "max_completion_tokens"):
            response = await api.chat(**({} if asked is None else {name: asked}))
            assert response.status_code == 200
            assert api.engine.calls[-1].params.max_tokens == given


async def test_completions_have_a_default_of_their_own():
    async with in_process(FakeEngine(), ServerSettings(answers=AnswerLimits(default=50, maximum=10))) as api:
        for asked, given in ((None, 10), (12, 10), (5, 5)):
            await api.complete(max_tokens=asked)
            assert api.engine.calls[-1].params.max_tokens == given


async def test_a_limit_ends_an_answer_for_its_length():
    async with in_process(FakeEngine(), ServerSettings(answers=AnswerLimits(maximum=2))) as api:
        choice = (await api.chat(max_tokens=100)).json()["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "Hello")


async def test_a_template_s_variables_have_defaults_that_a_request_replaces():
    async with in_process(FakeEngine(), ServerSettings(chat_template_kwargs={"mood": "calm"})) as api:
        await api.chat()
        await api.chat(chat_template_kwargs={"mood": "glad"})
    texts = [api.engine.tokenizer.decode(call.prompt) for call in api.engine.calls]
    assert ["(calm)" in texts[0], "(glad)" in texts[1], "(calm)" in texts[1]] == [True, True, False]


# ---- load -------------------------------------------------------------------------------------------------------


async def test_load_counts_what_generates_and_nothing_else():
    engine = FakeEngine(script=Script(hang_at=1))

    async def load():
        return (await http.get("/load")).json()

    async with on_socket(engine) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        assert await load() == {"server_load": 0}
        asking = [
            asyncio.create_task(http.post("/v1/chat/completions", json=CHAT)),
            asyncio.create_task(http.post("/v1/completions", json={"model": MODEL, "prompt": ["a", "b"]})),
        ]
        await until(lambda: len(engine.running) == 3)
        assert await load() == {"server_load": 2}
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await until(lambda: not engine.running)
        assert await load() == {"server_load": 0}


async def test_a_refused_request_is_no_load(api):
    assert (await api.chat(n=0)).status_code == 400
    assert (await api.client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping_is_health(api, method):
    assert (await api.client.request(method, "/ping")).status_code == 200
    api.engine.health.stalled = True
    assert (await api.client.request(method, "/ping")).status_code == 503


# ---- bodies in flight -------------------------------------------------------------------------------------------


async def test_bodies_of_all_requests_together_have_a_limit():
    engine = FakeEngine(script=Script(hang_at=0))
    settings = ServerSettings(limits=Limits(bodies_bytes=1000), drain_seconds=0.1)
    body = {**CHAT, "messages": [{"role": "user", "content": "x" * 300}]}
    async with on_socket(engine, settings) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        asking = [asyncio.create_task(http.post("/v1/chat/completions", json=body)) for _ in range(2)]
        await until(lambda: len(engine.running) == 2)
        response = await http.post("/v1/chat/completions", json=body)
        check_error(response, 503, kind="overloaded_error")
        assert response.headers["retry-after"] == "1"
        asking[0].cancel()
        await until(lambda: len(engine.running) == 1)
        asking.append(asyncio.create_task(http.post("/v1/chat/completions", json=body)))
        await until(lambda: len(engine.running) == 2)
        for task in asking:
            task.cancel()
        await until(lambda: not engine.running)


def test_a_tenant_leaves_memory_for_the_bodies_of_others():
    bodies = TenantShares(1000)
    for size, full in ((200, False), (50, False), (1, True)):
        bodies.add("key 0", size)
        assert bodies.is_full("key 0", size) == full
    bodies.add("key 1", 600)
    assert not bodies.is_full("key 1", 600)
    bodies.add("key 0", -251)
    assert not bodies.is_full("key 0", 0)
    bodies.add("", 400)
    assert not bodies.is_full("", 400)
    bodies.add("", 1)
    assert bodies.is_full("", 401)


def test_a_key_may_ask_for_its_share_of_tokens_and_all_for_no_more_than_there_are():
    asked = AnswerAdmission(100, "tokens", "n")
    with asked.admit("a", 1000), pytest.raises(OverloadedError, match="ask for less"), asked.admit("b", 1):
        pass  # only the first is alone
    with asked.admit("a", 20), asked.admit("b", 25), asked.admit("c", 50):
        with pytest.raises(RateLimitError), asked.admit("a", 6):
            pass
        with pytest.raises(OverloadedError), asked.admit("d", 6):
            pass
        with asked.admit("a", 5):
            pass


async def test_requests_that_ask_for_too_many_tokens_are_told_to_come_back():
    engine = FakeEngine(script=Script(hang_at=0))
    async with in_process(engine, ServerSettings(max_asked_tokens=1000)) as api:
        first = asyncio.create_task(api.complete(max_tokens=100, n=2, logprobs=2))  # 600
        await until(lambda: len(engine.running) == 1)
        refused = await api.complete(max_tokens=100, n=5)
        check_error(refused, 503, kind="overloaded_error")
        assert refused.headers["retry-after"] == "1"
        second = asyncio.create_task(api.complete(max_tokens=100, n=4))
        await until(lambda: len(engine.running) == 2)
        for task in (first, second):
            task.cancel()
        await asyncio.wait((first, second))


async def test_nobody_who_asks_for_one_answer_is_refused_by_the_default():
    """Where the platform's default is more rows than the configuration's."""
    engine = FakeEngine(script=Script(hang_at=0), info=FakeInfo(max_model_len=10**6, max_num_seqs=300))
    engine.config = replace(engine.config, scheduler=SchedulerConfig(max_waiting=1))
    async with in_process(engine) as api:
        waiting = [asyncio.create_task(api.chat()) for _ in range(301)]
        await until(lambda: len(engine.running) == len(waiting))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_slow_reader_of_several_prompts_takes_no_more_than_it_has_read():
    taken = [0, 0]

    async def stream(index):
        while True:
            taken[index] += 1
            yield index

    async with aclosing(merged([stream(0), stream(1)])) as outputs:
        assert await anext(outputs) in (0, 1)
        for _ in range(50):
            await asyncio.sleep(0)
        assert max(taken) <= 4


async def test_errors_of_one_prompt_end_all():
    async def forever():
        while True:
            yield await asyncio.sleep(0)

    async def fails():
        yield None
        raise LookupError

    async def read():
        async with aclosing(merged([forever(), fails()])) as outputs:
            async for _ in outputs:
                pass

    with pytest.raises(LookupError):
        await read()


async def test_a_key_has_its_share_of_requests_and_another_key_its_own():
    engine = FakeEngine(script=Script(hang_at=0))
    settings = ServerSettings(api_keys=("a", "b"), max_requests_per_key=2, drain_seconds=0.1)
    async with on_socket(engine, settings) as server, server.openai(api_key="a") as a, server.openai(api_key="b") as b:
        asking = [asyncio.create_task(a.chat.completions.create(**CHAT)) for _ in range(2)]
        await until(lambda: len(engine.running) == 2)
        with pytest.raises(openai.RateLimitError) as refused:
            await a.models.list()
        assert refused.value.code == "rate_limit_exceeded"
        assert refused.value.response.headers["retry-after"] == "1"
        assert (await b.models.list()).data
        async with httpx.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/health", headers={"Authorization": "Bearer a"})).status_code == 200
            check_error(await http.get("/v1/models"), 401, code="invalid_api_key")
        asking[0].cancel()
        await until(lambda: len(engine.running) == 1)
        assert (await a.models.list()).data
        asking[1].cancel()
        await asyncio.wait(asking)
        await until(lambda: not engine.running)


# ---- streams ----------------------------------------------------------------------------------------------------


async def test_a_silent_stream_gets_comments_and_its_events_stay_whole():
    engine = FakeEngine(script=Script(pieces=["a", "b", "c"], delay=0.12))
    async with in_process(engine, ServerSettings(sse_keep_alive_seconds=0.05)) as api:
        response = await api.chat(stream=True)
        assert ": keep-alive\n\n" in response.text
        # Nothing before the first event: until then an error is a status.
        assert response.text.startswith("data: ")
        check_chat(response.text)
        engine.script = Script(delay=0.12, error=RuntimeError("a bug"), error_at=0)
        check_error(await api.chat(stream=True), 500, kind="internal_error")
        engine.script = Script(delay=0.06)
        assert "keep-alive" not in (await api.chat()).text


async def test_a_stream_that_is_not_silent_gets_none(api):
    engine = FakeEngine()
    async with in_process(engine, ServerSettings(sse_keep_alive_seconds=5.0)) as api:
        assert "keep-alive" not in (await api.chat(stream=True)).text


async def test_a_client_that_leaves_a_commented_stream_leaves_no_task_behind():
    engine = FakeEngine(script=Script(hang_at=1))
    settings = ServerSettings(sse_keep_alive_seconds=0.02, drain_seconds=0.1)
    async with on_socket(engine, settings) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        await http.get("/health")
        before = len(asyncio.all_tasks())
        async with http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            lines = response.aiter_lines()
            while await anext(lines) != ": keep-alive":
                pass
        await until(lambda: not engine.running and len(asyncio.all_tasks()) <= before)


async def test_every_event_tells_its_usage_where_that_is_forced():
    """As in vLLM."""
    async with in_process(FakeEngine(), ServerSettings(force_include_usage=True)) as api:
        for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": {"include_usage": True}}):
            check_chat((await api.chat(stream=True, **options)).text, usage=True, continuous=True)
            check_completion((await api.complete(stream=True, **options)).text, usage=True, continuous=True)


# ---- a proxy's prefix -------------------------------------------------------------------------------------------


async def test_a_prefix_is_taken_off_and_may_be_off_already():
    settings = ServerSettings(root_path="/llm", api_keys=("key",))
    async with in_process(FakeEngine(), settings) as api:
        key = {"Authorization": "Bearer key"}
        for path in ("/v1/models", "/llm/v1/models", f"/llm/v1/models/{MODEL}"):
            assert (await api.client.get(path, headers=key)).status_code == 200
            check_error(await api.client.get(path), 401, code="invalid_api_key")
        assert (await api.client.get("/llm/health")).status_code == 200
        for path in ("/llmhealth", "/llm", "/llm//health", "/x/llm/health", "/llm/llm/health"):
            check_error(await api.client.get(path), 401, code="invalid_api_key")
        text = (await api.client.get("/llm/metrics", headers=key)).text
        assert 'handler="/v1/models"' in text
        assert 'handler="/llm' not in text


async def test_the_openai_client_behind_a_prefix():
    async with (
        on_socket(FakeEngine(), ServerSettings(root_path="/llm", drain_seconds=0.1)) as server,
        server.openai(base_url=f"{server.url}/llm/v1") as client,
    ):
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "Hello, wörld!"
