"""The frame of a route that generates: body in, work that ends with the client, one answer or a stream out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tessera.server.connection import read_body, until_disconnect
from tessera.server.load import Load
from tessera.server.sse import send_events


class Answer(Protocol):
    """A request that was read and found right."""

    stream: bool

    async def whole(self) -> msgspec.Struct: ...
    def events(self) -> AsyncGenerator[bytes, None]: ...


class GenerationEndpoint:
    """An ASGI application. read: a body, and what came with it, to its Answer; raises TesseraError."""

    def __init__(self, read: Callable[[bytes, Scope], Awaitable[Answer]], load: Load) -> None:
        self._read = read
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._load.one():
            body = await read_body(receive)
            await until_disconnect(receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._read(body, scope)
        if answer.stream:
            await send_events(send, answer.events())
        else:
            content = msgspec.json.encode(await answer.whole())
            await Response(content, media_type="application/json")(scope, receive, send)
