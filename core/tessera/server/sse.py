"""Server-sent events: the status line waits for the first event, so that what fails before it is an HTTP error.

What fails later is an event of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Send

from tessera.errors import TesseraError
from tessera.server.errors import body_of

DONE = b"data: [DONE]\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def send_events(send: Send, events: AsyncGenerator[bytes, None]) -> None:
    """Sends whole events as they come, then [DONE].

    Raises what `events` raises before its first; after it an error is told in the stream.
    """
    async with aclosing(events):
        first = await anext(events)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            await _send(send, first)
            async for data in events:
                await _send(send, data)
        except TesseraError as error:
            await _send(send, event(body_of(error)))
        except Exception as error:
            await _end(send, event(body_of(error)) + DONE)
            raise
        await _end(send, DONE)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _end(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": False})
