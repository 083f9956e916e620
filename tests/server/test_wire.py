"""What clients send and read that strict servers stumble over."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest

from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.sse import read_stream
from tests.server.test_errors import check_error

USER = {"role": "user", "content": "Hi"}
ROUTES = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 9},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_a_request_need_not_name_the_only_model(api, path):
    for named in ({}, {"model": None}):
        response = await api.post(path, {**ROUTES[path], **named})
        assert response.status_code == 200
        assert response.json()["model"] == MODEL


async def test_a_whole_float_is_an_integer(api):
    given = {"max_tokens": 16.0, "top_k": 5.0, "seed": 3.0, "stop_token_ids": [7.0], "temperature": 1.0, "n": 1.0}
    for post in (api.chat, api.complete):
        assert (await post(**given)).status_code == 200
        params = api.engine.calls[-1].params
        assert (params.max_tokens, params.top_k, params.seed, params.stop_token_ids) == (16, 5, 3, (7,))
        for value in (16.5, "16", True, 1e300):
            check_error(await post(max_tokens=value), 400, "max_tokens")
    assert (await api.post("/v1/completions", b'{"prompt": [72.0, 105.0]}')).status_code == 200
    assert api.engine.calls[-1].prompt == [72, 105]


async def test_a_byte_order_mark_is_skipped(api):
    body = b"\xef\xbb\xbf" + json.dumps({"messages": [USER]}).encode()
    assert (await api.post("/v1/chat/completions", body)).status_code == 200


async def test_a_body_may_be_compressed(api):
    body = json.dumps({"messages": [{"role": "user", "content": "Hi" * 100}]}).encode()
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}

    async def post(content: bytes, **more: str) -> httpx.Response:
        return await api.client.post("/v1/chat/completions", content=content, headers={**headers, **more})

    assert (await post(gzip.compress(body))).status_code == 200
    assert len(api.engine.calls[0].prompt) > 200
    for wrong in (body, gzip.compress(body)[:-9], gzip.compress(body) + b"{}", b""):
        check_error(await post(wrong), 400)
    assert (await post(body, **{"Content-Encoding": "identity"})).status_code == 200
    check_error(await post(body, **{"Content-Encoding": "br"}), 415)


async def test_a_body_that_expands_beyond_the_limit_is_stopped_there():
    settings = ServerSettings(limits=Limits(body_bytes=10_000))
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) > 10_000  # in pieces, the first of which already expands beyond it
    async with in_process(FakeEngine(), settings) as api:

        async def pieces() -> AsyncIterator[bytes]:
            yield bomb[:5_000]
            yield bomb[5_000:6_000]

        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        tracemalloc.start()
        response = await api.client.post("/v1/chat/completions", content=pieces(), headers=headers)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        check_error(response, 413)
        assert peak < 2_000_000


async def test_roles_and_parts_of_older_and_other_clients_are_read(api):
    messages = [
        {"role": "critic", "content": "A"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "f", "content": "B"},
    ]
    assert (await api.chat(messages=messages)).status_code == 200
    prompt = api.engine.tokenizer.decode(api.engine.calls[0].prompt)
    assert prompt == "<critic>A</critic><assistant>No.</assistant><assistant>[f 1]</assistant><tool>B</tool><assistant>"
    for role in ("", "x" * 65):
        check_error(await api.chat(messages=[{"role": role, "content": "A"}]), 400, "messages[0].role")


async def test_ids_of_the_prompt_come_with_those_of_the_answer(api):
    chat = (await api.chat(return_token_ids=True)).json()
    assert chat["prompt_token_ids"] == api.engine.calls[-1].prompt
    streamed = read_stream((await api.chat(return_token_ids=True, stream=True)).text)
    ids = [chunk.get("prompt_token_ids") for chunk in streamed]
    assert ids == [api.engine.calls[-1].prompt, *[None] * (len(streamed) - 1)]
    whole = (await api.complete(prompt=["a", "bc"], return_token_ids=True)).json()
    prompts = [call.prompt for call in api.engine.calls[-2:]]
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == prompts
    chunks = read_stream((await api.complete(prompt=["a", "bc"], return_token_ids=True, stream=True)).text)
    found = [choice for chunk in chunks for choice in chunk["choices"] if "prompt_token_ids" in choice]
    assert [choice["prompt_token_ids"] for choice in sorted(found, key=lambda choice: choice["index"])] == prompts
    assert "prompt_token_ids" not in (await api.chat()).text


SAID = "a\u0085b\u2028c\u2029d"


async def test_a_stream_has_no_character_that_ends_a_line_for_some_clients():
    async with on_socket(FakeEngine(script=Script(pieces=SAID))) as server, httpx.AsyncClient() as client:
        body = {"messages": [USER], "stream": True}
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line]
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == SAID


@pytest.mark.parametrize(
    "fields",
    [
        {"n_predict": 5}, {"repeat_penalty": 1.2}, {"typical_p": 0.5}, {"dry_multiplier": 0.8}, {"xtc_probability": 1},
        {"mirostat": 2}, {"tfs_z": 0.9}, {"top_a": 0.2}, {"dynatemp_range": 0.3}, {"options": {"seed": 1}},
        {"logprob_token_ids": [1]}, {"return_prompt_text": True},
    ],
)  # fmt: skip
async def test_a_field_of_another_server_that_changes_the_answer_is_refused(api, fields):
    for post in (api.chat, api.complete):
        (name,) = fields
        assert name in check_error(await post(**fields), 400, name)
    assert not api.engine.calls


async def test_their_defaults_change_nothing(api):
    assert (await api.chat(typical_p=1.0, repeat_penalty=1, mirostat=0, xtc_probability=0.0)).status_code == 200


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/embeddings", "This route is known, and not served. Models that embed are not served yet."),
        ("/v1/files/abc", "This route is known, and not served. Files and batches are not served yet."),
        ("/sleep", "This route is known, and not served. This server's state is not changed over HTTP."),
        ("/infill", "This route is known, and not served. llama.cpp's own routes are not served; use OpenAI's."),
        ("/v1/nothing", "No such route."),
    ],
)
async def test_a_route_of_another_server_is_told_by_name(api, path, said):
    response = await api.post(path, {"input": "x"})
    assert check_error(response, 404, code="unknown_url").startswith(said)


async def test_routes_that_are_served_are_not_said_not_to_be():
    from tessera.server.app import create_app
    from tessera.server.settings import ServerSettings
    from tessera.server.unserved import ROUTES as others

    served = {route.path for route in create_app(FakeEngine(), ServerSettings()).routes}
    assert not served & others.keys()
    async with in_process(FakeEngine()) as api:
        for path in others:
            assert "known, and not served" in (await api.post(path, {})).text
