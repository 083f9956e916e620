"""Writes what the model says as the events of a response: items begun, continued and ended, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tessera.parsing.response import CallArguments, CallBegin, Content, Event, Reasoning
from tessera.server.http import detail_of
from tessera.server.responses.items import call_item, custom_item, message_item, new_id, reasoning_item, text_part
from tessera.server.responses.protocol import Item
from tessera.server.responses.tools import Tools
from tessera.server.sse import EventWire

_encode = msgspec.json.Encoder().encode


class EventWriter:
    """Numbers events."""

    def __init__(self) -> None:
        self._number = -1

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        data = _encode({"type": kind, "sequence_number": self._number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class ItemEvents:
    """output: the items that have ended, as they are in the response."""

    def __init__(self, writer: EventWriter, tools: Tools) -> None:
        self.output: list[Item] = []
        self._writer = writer
        self._tools = tools
        self._item: Item | None = None
        self._text: list[str] = []
        self._logprobs: list[Any] = []

    def of(self, event: Event, logprobs: Sequence[Any] = ()) -> Iterator[bytes]:
        """logprobs: of the tokens of a text."""
        match event:
            case Content(text):
                yield from self._into("message")
                self._text.append(text)
                self._logprobs += logprobs
                yield self._part("response.output_text.delta", delta=text, logprobs=list(logprobs))
            case Reasoning(text):
                yield from self._into("reasoning")
                self._text.append(text)
                yield self._part("response.reasoning_text.delta", delta=text)
            case CallBegin(_, call_id, name, custom):
                yield from self.end()
                made, prefix = (custom_item, "ctc") if custom else (call_item, "fc")
                yield from self._begin(self._tools.said(made(new_id(prefix), call_id, name, "", "in_progress")))
            case CallArguments(_, text, custom):
                self._text.append(text)
                kind = "custom_tool_call_input" if custom else "function_call_arguments"
                yield self._mine(f"response.{kind}.delta", delta=text)

    def end(self, status: str = "completed") -> Iterator[bytes]:
        """Ends the item that is open, if one is."""
        item = self._item
        if item is None:
            return
        text = "".join(self._text)
        match item["type"]:
            case "message":
                done = message_item(item["id"], text, status, self._logprobs)
                yield self._part("response.output_text.done", text=text, logprobs=self._logprobs)
                yield self._part("response.content_part.done", part=done["content"][0])
            case "reasoning":
                done = {**reasoning_item(item["id"], text), "status": status}
                yield self._part("response.reasoning_text.done", text=text)
                yield self._part("response.content_part.done", part=done["content"][0])
            case "custom_tool_call":
                done = {**item, "input": text, "status": status}
                yield self._mine("response.custom_tool_call_input.done", input=text)
            case _:
                done = {**item, "arguments": text, "status": status}
                yield self._mine("response.function_call_arguments.done", arguments=text, name=item["name"])
        yield self._writer.event("response.output_item.done", output_index=len(self.output), item=done)
        self.output.append(done)
        self._item, self._text, self._logprobs = None, [], []

    def _into(self, kind: str) -> Iterator[bytes]:
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self.end()
        if kind == "message":
            yield from self._begin(message_item(new_id("msg"), None, "in_progress"))
            yield self._part("response.content_part.added", part=text_part(""))
        else:
            yield from self._begin(reasoning_item(new_id("rs"), None, "in_progress"))
            yield self._part("response.content_part.added", part={"type": "reasoning_text", "text": ""})

    def _begin(self, item: Item) -> Iterator[bytes]:
        self._item = item
        yield self._writer.event("response.output_item.added", output_index=len(self.output), item=item)

    def _mine(self, kind: str, **fields: Any) -> bytes:
        assert self._item is not None
        return self._writer.event(kind, item_id=self._item["id"], output_index=len(self.output), **fields)

    def _part(self, kind: str, **fields: Any) -> bytes:
        return self._mine(kind, content_index=0, **fields)


def _failure(error: Exception) -> bytes:
    detail = detail_of(error)
    data = {"type": "error", "code": detail.code or detail.type, "message": detail.message, "param": detail.param,
            "sequence_number": 0}  # fmt: skip
    return b"event: error\ndata: " + _encode(data) + b"\n\n"


EVENTS = EventWire(_failure, b"")
