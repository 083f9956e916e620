"""Writes what the model says as the events of a response: items begun, continued and ended, one at a time. A response
that is not streamed has the same items, and nobody reads its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tessera.parsing.response import CallArguments, CallBegin, Content, Event, Reasoning
from tessera.request import CompletionOutput
from tessera.server.generation.items import Item
from tessera.server.http import detail_of
from tessera.server.responses.items import call_item, custom_item, message_item, reasoning_item, text_part
from tessera.server.responses.logprobs import TextLogprobs
from tessera.server.responses.tools import Tools
from tessera.server.sse import EventWire
from tessera.server.store import new_id

_encode = msgspec.json.Encoder().encode


class EventWriter:
    """Numbers events. after: the number of the last one that the client has; those up to it are empty."""

    def __init__(self, after: int = -1) -> None:
        self._number = -1
        self._after = after

    def event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        if self._number <= self._after:
            return b""
        data = _encode({"type": kind, "sequence_number": self._number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class Unwritten(EventWriter):
    """For a response that is not streamed."""

    def event(self, kind: str, **fields: Any) -> bytes:
        return b""


class ItemEvents:
    """output: the items that have ended, as they are in the response. logprobs: None if they are not shown. They are
    encoded once, and then only joined, because several events repeat them."""

    def __init__(self, writer: EventWriter, tools: Tools, logprobs: TextLogprobs | None = None) -> None:
        self.output: list[Item] = []
        self._writer = writer
        self._tools = tools
        self._of_texts = logprobs
        self._item: Item | None = None
        self._text: list[str] = []
        self._logprobs: list[bytes] = []
        """The elements of a JSON array so far."""

    def write(self, answer: CompletionOutput, events: Iterable[Event]) -> Iterator[bytes]:
        """answer: what is new. events: what it says."""
        if self._of_texts is not None:
            self._of_texts.add(answer)
        for event in events:
            yield from self._write_event(event)
        if answer.finished:
            yield from self.end(status_of(answer))

    def _write_event(self, event: Event) -> Iterator[bytes]:
        match event:
            case Content(text):
                yield from self._into("message")
                known = self._of_texts
                yield self._say(text, b"" if known is None else known.take(event, begins=not self._text))
            case Reasoning(text):
                yield from self._into("reasoning")
                yield self._say(text)
            case CallBegin(_, call_id, name, custom):
                yield from self.end()
                made, prefix = (custom_item, "ctc") if custom else (call_item, "fc")
                yield from self._begin(self._tools.public_item(made(new_id(prefix), call_id, name, "", "in_progress")))
            case CallArguments(_, text):
                yield self._say(text)

    def again(self, item: Item) -> Iterator[bytes]:
        """An item that is kept: its text comes in one piece."""
        match item:
            case {"content": [part]}:
                yield from self._begin({**item, "content": [], "status": "in_progress"})
                yield self._say(part["text"], _encode(part.get("logprobs", []))[1:-1])
            case {"type": "custom_tool_call", "input": text}:
                yield from self._begin({**item, "input": "", "status": "in_progress"})
                yield self._say(text)
            case {"arguments": text}:
                yield from self._begin({**item, "arguments": "", "status": "in_progress"})
                yield self._say(text)
        yield from self.end(item["status"])

    def end(self, status: str = "completed") -> Iterator[bytes]:
        """Ends the item that is open, if one is."""
        item = self._item
        if item is None:
            return
        text = "".join(self._text)
        match item["type"]:
            case "message":
                logprobs = _array(*self._logprobs)
                done = message_item(item["id"], text, status, logprobs)
                yield self._part("response.output_text.done", text=text, logprobs=logprobs)
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
        made, prefix = (message_item, "msg") if kind == "message" else (reasoning_item, "rs")
        yield from self._begin(made(new_id(prefix), None, "in_progress"))

    def _begin(self, item: Item) -> Iterator[bytes]:
        self._item = item
        yield self._writer.event("response.output_item.added", output_index=len(self.output), item=item)
        if item["type"] == "message":
            yield self._part("response.content_part.added", part=text_part(""))
        elif item["type"] == "reasoning":
            yield self._part("response.content_part.added", part={"type": "reasoning_text", "text": ""})

    def _say(self, text: str, logprobs: bytes = b"") -> bytes:
        """A piece of the text of the item that is open."""
        assert self._item is not None
        self._text.append(text)
        match self._item["type"]:
            case "message":
                if logprobs:
                    self._logprobs.append(logprobs)
                return self._part("response.output_text.delta", delta=text, logprobs=_array(logprobs))
            case "reasoning":
                return self._part("response.reasoning_text.delta", delta=text)
            case "custom_tool_call":
                return self._mine("response.custom_tool_call_input.delta", delta=text)
        return self._mine("response.function_call_arguments.delta", delta=text)

    def _mine(self, kind: str, **fields: Any) -> bytes:
        assert self._item is not None
        return self._writer.event(kind, item_id=self._item["id"], output_index=len(self.output), **fields)

    def _part(self, kind: str, **fields: Any) -> bytes:
        return self._mine(kind, content_index=0, **fields)


def _array(*elements: bytes) -> msgspec.Raw:
    return msgspec.Raw(b"[%b]" % b",".join(elements))


def status_of(answer: CompletionOutput) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def wire_of(writer: EventWriter, failed: Callable[[], Any]) -> EventWire:
    """An error ends a stream as it ends OpenAI's: the error, and then the response. failed: gives that; None if it has
    not failed."""

    def failure(error: Exception) -> bytes:
        detail = detail_of(error)
        code = detail.code or detail.type
        said = writer.event("error", code=code, message=detail.message, param=detail.param)
        response = failed()
        return said if response is None else said + writer.event("response.failed", response=response)

    return EventWire(failure, b"")
