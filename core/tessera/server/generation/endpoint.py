"""The ASGI application of a route that generates: from a request's body to its answer, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec
from starlette.types import Receive, Scope, Send

from tessera.server.context import ServerContext
from tessera.server.http import read_body, send_json, until_disconnect
from tessera.server.sse import EventWire, send_events


class GenerationAnswer(Protocol):
    """The answer to a valid request, as a struct or as pieces of its JSON."""

    async def whole(self) -> msgspec.Struct | list[bytes]: ...


@runtime_checkable
class StreamedAnswer(GenerationAnswer, Protocol):
    """An answer that is events if `stream`. wire: how its stream ends."""

    stream: bool
    wire: EventWire

    def events(self) -> AsyncGenerator[bytes, None]: ...


class GenerationEndpoint:
    """The ASGI application of a route that generates. Reads the body, responds with one answer or a stream, and stops
    generating if the client disconnects. read: turns a body and its scope into the answer; may raise TesseraError."""

    def __init__(self, read: Callable[[bytes, Scope], Awaitable[GenerationAnswer]], context: ServerContext) -> None:
        self._read = read
        self._counts = context.counts
        self._assembly = context.assembly

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counts.one_generating():
            body = await read_body(receive)
            await until_disconnect(receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._read(body, scope)
        if isinstance(answer, StreamedAnswer) and answer.stream:
            await send_events(send, answer.events(), answer.wire)
        else:
            whole = await answer.whole()
            await send_json(send, whole if isinstance(whole, list) else await self._assembly.encode(whole))
