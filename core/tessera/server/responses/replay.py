"""A response that is kept, as a stream: the events of its creation, but the text of each item in one piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.errors import RequestError
from tessera.server.http import until_disconnect
from tessera.server.paging import is_number
from tessera.server.responses.events import EventWriter, ItemEvents, wire_of
from tessera.server.responses.tools import Tools
from tessera.server.sse import send_events

_BEFORE: Mapping[str, Any] = {
    "status": "in_progress",
    "output": [],
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "usage": None,
}
_PLACE = "starting_after"
_ENDS = ("completed", "incomplete", "failed")


def replay(response: dict[str, Any], ended: Callable[[], Awaitable[dict[str, Any]]], after: int) -> ASGIApp:
    """response: as it is kept now. ended: gives it once it has ended. after: of EventWriter. The application raises
    RequestError for one that was cancelled."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        writer = EventWriter(after)
        wire = wire_of(writer, lambda: None)
        await until_disconnect(receive, send_events(send, _events(response, ended, writer), wire))

    return respond


def place_of(response: Mapping[str, Any], starting_after: str | None) -> int:
    """The number of the event after which the client asks for more; -1 if it asks for all. Raises RequestError."""
    if starting_after is None:
        return -1
    if not response["background"]:
        # Its events were others when it was made, because the text came in more pieces.
        raise RequestError("Only a response in the background has a starting_after; leave it out.", param=_PLACE)
    if not is_number(starting_after):
        raise RequestError("starting_after must be the sequence_number of an event.", param=_PLACE)
    return int(starting_after)


async def _events(
    response: dict[str, Any], ended: Callable[[], Awaitable[dict[str, Any]]], writer: EventWriter
) -> AsyncGenerator[bytes, None]:
    if response["status"] == "cancelled":
        raise _cut_short(response)
    for kind in ("created", "in_progress"):
        yield writer.event(f"response.{kind}", response={**response, **_BEFORE})
    response = await ended()
    if response["status"] not in _ENDS:
        raise _cut_short(response)
    items = ItemEvents(writer, Tools())
    for item in response["output"]:
        yield b"".join(items.again(item))
    yield writer.event(f"response.{response['status']}", response=response)


def _cut_short(response: dict[str, Any]) -> RequestError:
    return RequestError(f"The response cannot be streamed: its status is {response['status']}.", param="stream")
