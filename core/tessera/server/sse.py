"""Server-sent events, and comments that keep silent streams open.

The status line is sent with the first event, so that an error before it is an HTTP error. A later error is an event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import TesseraError
from tessera.server.http import body_of

DONE = b"data: [DONE]\n\n"
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
_COMMENT: Message = {"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True}


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


@dataclass(frozen=True)
class EventWire:
    """How an API writes a stream. error: the event of an error after the first event. end: what follows the last
    event."""

    error: Callable[[Exception], bytes]
    end: bytes
    media_type: bytes = b"text/event-stream; charset=utf-8"


OPENAI = EventWire(lambda error: event(body_of(error)), DONE)


async def send_events(send: Send, events: AsyncGenerator[bytes, None], wire: EventWire = OPENAI) -> None:
    """Sends whole events as they come, then the end.

    Raises what `events` raises before the first event. A later error is sent as an event, and raised too unless it is a
    TesseraError.
    """
    async with aclosing(events):
        first = await anext(events)
        headers = ((b"content-type", wire.media_type), *_HEADERS)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await _send(send, first)
            async for data in events:
                await _send(send, data)
        except TesseraError as error:
            await _send(send, wire.error(error))
        except Exception as error:
            await _end(send, wire.error(error) + wire.end)
            raise
        await _end(send, wire.end)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": escaped(data), "more_body": True})


def escaped(data: bytes) -> bytes:
    """Events without the line ends that JSON leaves as they are. In UTF-8 no other character has their bytes, and they
    only occur within JSON strings."""
    if not data.isascii():
        for end, escape in _LINE_ENDS:
            data = data.replace(end, escape)
    return data


async def _end(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": escaped(data), "more_body": False})


class KeepAlive:
    """ASGI middleware: sends a comment whenever an event stream has been silent for `seconds`, so that proxies keep the
    connection open. Sends none before the first event."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = CommentedStream(send, self._seconds)
        try:
            await self._app(scope, receive, stream.send)
        finally:
            await stream.close()


class CommentedStream:
    """An ASGI `send` that adds comments between the events of an event stream."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._is_event_stream = False
        self._sent = 0.0
        self._commenting: asyncio.Task[None] | None = None
        # The end of the stream must not overtake a comment that waits for a slow client.
        self._order = asyncio.Lock()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_event_stream = _is_event_stream(message)
        if not self._is_event_stream or message["type"] != "http.response.body":
            await self._send(message)
            return
        async with self._order:
            if not message.get("more_body", False):
                self._stop()
            await self._send(message)
            self._sent = time.monotonic()
        if self._commenting is None and message.get("more_body", False):
            self._commenting = asyncio.create_task(self._comment())

    async def close(self) -> None:
        self._stop()
        if self._commenting is not None:
            await asyncio.wait((self._commenting,))

    def _stop(self) -> None:
        if self._commenting is not None:
            self._commenting.cancel()

    async def _comment(self) -> None:
        while True:
            await asyncio.sleep(self._sent + self._seconds - time.monotonic())
            async with self._order:
                if time.monotonic() >= self._sent + self._seconds:
                    await self._send(_COMMENT)
                    self._sent = time.monotonic()


def _is_event_stream(start: Message) -> bool:
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start.get("headers", ())
    )
