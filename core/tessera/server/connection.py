"""One HTTP exchange: its headers, its body, and work that ends when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Scope


class ClientGone(Exception):  # noqa: N818 - not an error: nobody is left to answer
    """The client closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    return next((value for key, value in scope["headers"] if key == name), None)


async def read_body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it when the client goes away. To be called when the body has been read.

    The next message is the disconnect.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        left = not working.done() and working.cancel()
        await asyncio.wait((working, leaving))
    if not (left and working.cancelled()):
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
