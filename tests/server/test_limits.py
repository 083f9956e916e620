"""Everything that a client can send too much of is refused, quickly and by name."""

from __future__ import annotations

import asyncio
import json
import resource
import time

import pytest

from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import FakeEngine
from tests.server.test_errors import check_error

USER = {"role": "user", "content": "Hi"}
MIB = 2**20
SECONDS = 0.5
"""Of processor time for a body that is refused: on an idle machine it is a twentieth of that, and building what such a
body asks for takes many times as long."""


async def timed(post, **fields):
    """The response, and the least of three processor times in seconds: other processes use this machine."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        response = await post(**fields)
        best = min(best, time.process_time() - began)
    return response, best


CHAT = {
    "n": (10**9, "n"),
    "stop": (["x"] * 65, "stop"),
    "stop_token_ids": ([1] * 65, "stop_token_ids"),
    "top_logprobs": (21, "top_logprobs"),
    "max_tokens": (2**31, "max_tokens"),
    "messages": ([USER] * 2049, "messages"),
    "tools": ([{"x": "y" * MIB}], "tools"),
    "chat_template_kwargs": ({"x": "y" * 2**16}, "chat_template_kwargs"),
    "cache_salt": ("x" * 257, "cache_salt"),
    "prompt_cache_key": ("x" * 257, "prompt_cache_key"),
    "request_id": ("x" * 129, "request_id"),
    "priority": (2**31, "priority"),
    "metadata": ({"x": "y" * MIB}, None),
    "logit_bias": ({str(key): 1 for key in range(100_000)}, None),
    "seed": (2**64, "seed"),
}


@pytest.mark.parametrize("field", CHAT)
async def test_chat(api, field):
    value, param = CHAT[field]
    body = {"model": "fake-model", "messages": [USER], "logprobs": True, field: value}
    content = json.dumps(body).encode()
    response, seconds = await timed(lambda: api.post("/v1/chat/completions", content))
    check_error(response, 400, param)
    assert seconds < SECONDS
    assert not api.engine.calls


@pytest.mark.parametrize("text", ["x" * 1025, ""])
async def test_a_stop_string_has_its_length(api, text):
    check_error(await api.chat(stop=text), 400, "stop")
    check_error(await api.chat(stop=["ok", text]), 400, "stop")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": "x"}] * 8193}], "content parts"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}] * 8193}],
            "tool calls",
        ),
        ([USER] * 100_000, "messages"),
    ],
    ids=["parts", "calls", "messages"],
)
async def test_counts_inside_messages_are_looked_at_before_they_are_built(api, messages, words):
    content = json.dumps({"model": "fake-model", "messages": messages}).encode()
    response, seconds = await timed(lambda: api.post("/v1/chat/completions", content))
    assert words in check_error(response, 400, "messages")
    assert seconds < SECONDS


@pytest.mark.parametrize(
    "prompt",
    [["x"] * 65, ['a"b\\'] * 65, [[1]] * 65, [[1] * 8] * 1000, [""] * 100_000, [[]] * 1_000_000, [1] * 1_000_000],
    ids=range(7),
)
async def test_prompts(api, prompt):
    content = json.dumps({"model": "fake-model", "prompt": prompt}).encode()
    response, seconds = await timed(lambda: api.post("/v1/completions", content))
    error = response.json()["error"]
    check_error(response, 400, "prompt", error["code"])
    assert seconds < SECONDS
    assert not api.engine.calls


async def test_prompts_times_n(api):
    check_error(await api.complete(prompt=["x"] * 64, n=9), 400, "n")
    assert (await api.complete(prompt=["x"] * 64, n=2)).status_code == 200


async def test_logprobs_of_completions(api):
    for value in (21, -1):
        check_error(await api.complete(logprobs=value), 400, "logprobs")


async def test_characters_of_a_prompt():
    settings = ServerSettings(limits=Limits(prompt_chars=100))
    async with in_process(FakeEngine(), settings) as api:
        check_error(await api.complete(prompt="x" * 101), 400, "prompt")
        check_error(await api.chat(messages=[{"role": "user", "content": "x" * 100}]), 400, "messages")
        assert (await api.complete(prompt="x" * 100)).status_code == 200


async def test_a_body_of_its_limit_is_taken_and_one_byte_more_is_not():
    settings = ServerSettings(limits=Limits(body_bytes=1000))
    frame = len(json.dumps({"model": "fake-model", "prompt": ""}))
    async with in_process(FakeEngine(), settings) as api:
        assert (await api.complete(prompt="x" * (500 - frame))).status_code == 200
        response = await api.complete(prompt="x" * (1001 - frame))
        check_error(response, 413)
        assert response.headers["connection"] == "close"


async def test_a_length_of_thousands_of_digits_is_a_client_error(caplog):
    async with on_socket(FakeEngine()) as server:
        for digits, status in ((b"0" * 5000, b"400"), (b"0" * 5000 + b"9" * 12, b"413")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % digits)
            assert status in (await asyncio.wait_for(reader.readuntil(b"\r\n"), 20))
            writer.close()
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def test_a_body_counts_whatever_the_method():
    settings = ServerSettings(limits=Limits(body_bytes=1000))
    async with in_process(FakeEngine(), settings) as api:
        for method in ("GET", "DELETE"):
            check_error(await api.client.request(method, "/v1/models", content=b"x" * 1001), 413)


async def test_the_largest_bodies_cost_no_memory():
    """Each is refused from its bytes: what is in it is never built."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 8 * MIB
    bodies = [
        b'{"model":"m","prompt":[' + b"[]," * (size // 3) + b"[]]}",
        b'{"model":"m","prompt":[' + b"1," * (size // 2) + b"1]}",
        b'{"model":"m","x":[' + b"{}," * (size // 3) + b"{}]}",
        b'{"model":"m","messages":[' + b'{"role":"u"},' * (size // 13) + b"{}]}",
        b'{"model":"m","messages":[{"role":"user","content":"x","x":[' + b"[]," * (size // 3) + b"[]]}]}",
    ]
    async with in_process(FakeEngine()) as api:
        for body in bodies:
            assert (await api.post("/v1/completions", body)).status_code in (400, 404)
            assert (await api.post("/v1/chat/completions", body)).status_code in (400, 404)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 1024


async def test_requests_in_work_have_a_limit():
    async with in_process(FakeEngine(), ServerSettings(max_requests=0)) as api:
        response = await api.chat()
        check_error(response, 503, kind="overloaded_error")
        assert response.headers["retry-after"] == "1"
        assert (await api.client.get("/health")).status_code == 200
