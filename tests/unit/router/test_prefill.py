"""A router that has prompts computed first: what each server is asked, and that the client's own request goes on as it
is where nobody has computed its prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tessera.cli.program import run as run_command
from tessera.router.prefill import Prefill
from tessera.router.servers import ServerPool

CHAT = {"path": "/v1/chat/completions"}
PARAMS = {"do_remote_prefill": True, "remote_port": 5}
Answer = Callable[[httpx.Request], httpx.Response]


async def prepared(answer: Answer, body: Any, scope: dict[str, str] | None = None, *, ready: bool = True) -> Any:
    """The body that goes on, and the router's servers."""

    def answered(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if ready else 503) if request.url.path == "/readyz" else answer(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answered)) as client:
        pool = ServerPool(client, 100)
        pool.update(["http://prefill:1"])
        watching = asyncio.create_task(pool.watch())
        async with asyncio.timeout(30):
            while pool.servers[0].is_ready != ready:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
        watching.cancel()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = [(b"authorization", b"Bearer key")]
        found = await Prefill(pool, client).prepare(scope or CHAT, headers, data, [b"block"])
        return (found if found == data else json.loads(found)), pool.servers[0]


def told(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"choices": [], "kv_transfer_params": PARAMS})


async def test_one_token_is_asked_for_and_the_rest_goes_on_as_it_was() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return told(request)

    body = {
        "messages": [{"role": "user", "content": "é"}], "max_completion_tokens": 50, "min_tokens": 5, "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0.10000000000000001,
    }  # fmt: skip
    found, server = await prepared(answer, body)
    assert found == {**body, "kv_transfer_params": PARAMS}
    (request,) = seen
    assert str(request.url) == "http://prefill:1/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer key"
    assert json.loads(request.content) == {
        "messages": body["messages"], "max_completion_tokens": 1, "max_tokens": 1, "stream": False, "temperature": 0.1,
        "kv_transfer_params": {"do_remote_decode": True},
    }  # fmt: skip
    assert (server.num_requests, server.num_failures, server.load) == (1, 0, 0)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (0, b""),
        (400, b'{"error": {}}'),
        (503, b'{"kv_transfer_params": {"do_remote_prefill": true}}'),
        (200, b'{"kv_transfer_params": null}'),
        (200, b'{"choices": []}'),
        (200, b"no JSON"),
    ],
)
async def test_where_nobody_has_computed_it_the_request_goes_on_as_it_is(status: int, content: bytes) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if not status:
            raise httpx.ConnectError("gone")
        return httpx.Response(status, content=content)

    body = b'{"messages": [ ], "stream":true}'
    found, server = await prepared(answer, body)
    assert found == body
    assert server.is_ready == bool(status)


@pytest.mark.parametrize(
    ("body", "path", "ready"),
    [
        (b'{"input": "text"}', "/v1/embeddings", True),
        (b'{"messages": [], "kv_transfer_params": {"do_remote_decode": true}}', CHAT["path"], True),
        (b'{"messages": []}', CHAT["path"], False),
        (b"no JSON", CHAT["path"], True),
        (b"[1]", CHAT["path"], True),
    ],
)
async def test_what_is_no_prompt_to_compute_is_not_asked_for(body: bytes, path: str, ready: bool) -> None:
    def never(request: httpx.Request) -> httpx.Response:
        raise AssertionError("asked")

    found, _ = await prepared(never, body, {"path": path}, ready=ready)
    assert found == body


def test_what_is_no_url_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["router", "http://a:1", "--prefill", "b:2"]) == 2
    assert "'b:2' is not the URL of a server" in capsys.readouterr().err
