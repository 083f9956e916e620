"""A response that is kept, as a stream: the events of its creation, but the text of each item in one piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.errors import RequestError
from tessera.server.http import until_disconnect
from tessera.server.responses.events import EVENTS, EventWriter, ItemEvents
from tessera.server.sse import send_events

_BEFORE: Mapping[str, Any] = {
    "status": "in_progress",
    "output": [],
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "usage": None,
}
_ENDS = ("completed", "incomplete", "failed")


def replay(response: dict[str, Any], ended: Callable[[], Awaitable[dict[str, Any]]]) -> ASGIApp:
    """response: as it is kept now. ended: gives it once it has ended. The application raises RequestError for one that
    was cancelled."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, send_events(send, _events(response, ended), EVENTS))

    return respond


async def _events(
    response: dict[str, Any], ended: Callable[[], Awaitable[dict[str, Any]]]
) -> AsyncGenerator[bytes, None]:
    if response["status"] == "cancelled":
        raise _cut_short(response)
    writer = EventWriter()
    for kind in ("created", "in_progress"):
        yield writer.event(f"response.{kind}", response={**response, **_BEFORE})
    response = await ended()
    if response["status"] not in _ENDS:
        raise _cut_short(response)
    items = ItemEvents(writer)
    for item in response["output"]:
        yield b"".join(items.again(item))
    yield writer.event(f"response.{response['status']}", response=response)


def _cut_short(response: dict[str, Any]) -> RequestError:
    return RequestError(f"The response cannot be streamed: its status is {response['status']}.", param="stream")
