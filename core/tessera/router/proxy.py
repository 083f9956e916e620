"""Passes requests on to a server, and its answer back as it comes. A request of which its client has got nothing yet is
sent to another server if the first fails."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tessera.errors import OverloadedError, ServerError, TooLargeError
from tessera.router.metrics import merged_metrics, own_lines
from tessera.router.prefill import Prefill
from tessera.router.prompts import PromptBlocks
from tessera.router.servers import RoutedServer, ServerPool
from tessera.server.http import ClientGone, error_response, header, json_response, until_disconnect

log = logging.getLogger(__name__)

MAX_TRIES = 3
MAX_BODY_BYTES = 256 * 2**20
_UNAVAILABLE = 503
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect",
    }
)  # fmt: skip
"""Headers of one connection (RFC 9110, 7.6.1), and those that are made anew."""
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PAGES = frozenset({"/livez", "/readyz", "/health", "/metrics"})


class _Failed(Exception):  # noqa: N818 - never raised beyond this file
    """A server failed a request before it had answered anything. is_down: it cannot be reached."""

    def __init__(self, words: str, *, is_down: bool) -> None:
        super().__init__(words)
        self.is_down = is_down


class Proxy:
    """The ASGI application of a router."""

    def __init__(
        self, pool: ServerPool, client: httpx.AsyncClient, blocks: PromptBlocks, prefill: Prefill | None = None
    ) -> None:
        """prefill: who has prompts computed first; None: the servers that answer compute them."""
        self._pool, self._client, self._blocks, self._prefill = pool, client, blocks, prefill
        # Requests that went to a second server.
        self.num_retries = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with suppress(ClientGone):
            if scope["path"] in _PAGES and scope["method"] in ("GET", "HEAD"):
                await (await self._own_page(scope))(scope, receive, send)
                return
            try:
                body = await _read(receive)
            except TooLargeError as error:
                await error_response(error)(scope, receive, send)
                return
            await until_disconnect(receive, self._pass_on(scope, body, receive, send))

    async def _own_page(self, scope: Scope) -> Response:
        """What the router says of itself."""
        if scope["path"] == "/metrics":
            key = header(scope, b"authorization")
            servers = [*self._pool.servers, *(self._prefill.pool.servers if self._prefill is not None else ())]
            text = await merged_metrics(self._client, servers, key)
            return Response(text + own_lines(servers, self.num_retries), media_type=_CONTENT_TYPE)
        if scope["path"] == "/livez" or self._pool.is_ready:
            return json_response({"status": "ok"})
        return json_response({"status": "no server is ready"}, _UNAVAILABLE)

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        key = header(scope, b"authorization") or header(scope, b"x-api-key") or b""
        blocks = self._blocks.read(body, key) if body and scope["method"] == "POST" else ()
        if self._prefill is not None:
            body = await self._prefill.prepare(scope, _passed_on(scope), body, blocks)
        tried: list[RoutedServer] = []
        while len(tried) < MAX_TRIES and (server := self._pool.choose(blocks, tried)) is not None:
            if tried:
                self.num_retries += 1
            try:
                with self._pool.running(server, blocks):
                    await self._answer(server, scope, body, send)
                return
            except _Failed as failure:
                log.warning("%s %s failed: %s", server.url, scope["path"], failure)
                self._pool.failed(server, is_down=failure.is_down)
                tried.append(server)
        error = OverloadedError("No server can answer now; try again later.")
        await error_response(error)(scope, receive, send)

    async def _answer(self, server: RoutedServer, scope: Scope, body: bytes, send: Send) -> None:
        """Raises _Failed if the client has got nothing."""
        async with self._sent(server, scope, body) as (answer, first, rest):
            headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _HOP_BY_HOP]
            if "content-length" in answer.headers:
                headers.append((b"content-length", answer.headers["content-length"].encode()))
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for piece in rest:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except httpx.HTTPError as error:
                log.warning("%s ended in the middle of an answer (%s)", server.url, type(error).__name__)
                self._pool.failed(server, is_down=True)
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise  # the connection is cut, so that nobody takes this for a whole answer
                await send({"type": "http.response.body", "body": _farewell(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    @asynccontextmanager
    async def _sent(
        self, server: RoutedServer, scope: Scope, body: bytes
    ) -> AsyncIterator[tuple[httpx.Response, bytes, AsyncIterator[bytes]]]:
        """The answer to a request, the first piece of its body and the others. Raises _Failed."""
        headers = _passed_on(scope)
        path = scope.get("raw_path") or scope["path"].encode()
        target = httpx.URL(server.url).copy_with(raw_path=path.split(b"?")[0] + _query(scope))
        request = self._client.build_request(scope["method"], target, headers=headers, content=body)
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _Failed(type(error).__name__, is_down=True) from error
        try:
            rest = answer.aiter_raw()
            try:
                first = await anext(rest, b"")
            except httpx.HTTPError as error:
                raise _Failed(type(error).__name__, is_down=True) from error
            if answer.status_code == _UNAVAILABLE:
                raise _Failed("503", is_down=False)
            yield answer, first, rest
        finally:
            await answer.aclose()


def _passed_on(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The headers that a server gets."""
    return [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP]


def _query(scope: Scope) -> bytes:
    query: bytes = scope.get("query_string", b"")
    return b"?" + query if query else b""


async def _read(receive: Receive) -> bytes:
    """Raises ClientGone and TooLargeError."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise TooLargeError(f"A request's body may have at most {MAX_BODY_BYTES} bytes.")
        if not message.get("more_body", False):
            return b"".join(pieces)


def _farewell() -> bytes:
    """The last event of a stream whose server ended."""
    error = ServerError("The server of this answer ended; send the request again.")
    body = {"error": {"message": error.message, "type": error.kind, "param": None, "code": None}}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
