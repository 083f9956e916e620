"""Comments in event streams that are silent for long, so that proxies keep their connections open."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_COMMENT: Message = {"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True}


class KeepAlive:
    """ASGI middleware. None goes out before a stream's first event: until then an error is an HTTP error."""

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
    """`send` that adds comments between the events of an event stream."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._is_event_stream = False
        self._sent = 0.0
        self._commenting: asyncio.Task[None] | None = None
        # A comment that waits for a slow client must not be overtaken by the end of the stream.
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
