"""The items that OpenAI's newer APIs take as their input: with ids, and as the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tessera.errors import RequestError
from tessera.server.generation.chat import ChatMessage, ContentPart, CustomCall, FunctionCall, InputAudio, ToolCall
from tessera.server.generation.tools import UNSEEN
from tessera.server.store import new_id

Item = dict[str, Any]
"""An item of an input or output: a message, a function_call, a function_call_output, or reasoning."""
_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}  # fmt: skip
_SERVED = ", ".join(_PREFIXES)
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")


def input_items(items: str | Sequence[Item] | None, field: str = "input") -> list[Item]:
    """A request's input as items with ids and types. field: of the request. Raises RequestError."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    return [_item(item, f"{field}[{index}]") for index, item in enumerate(items or ())]


def _item(item: Item, place: str) -> Item:
    kind = item.get("type", "message")
    if not isinstance(kind, str) or kind not in _PREFIXES:
        raise RequestError(f"{place}.type must be one of {_SERVED}.", param=f"{place}.type")
    named = item.get("id")
    found = {**item, "type": kind, "id": named if isinstance(named, str) and named else new_id(_PREFIXES[kind])}
    if kind == "message" and isinstance(item.get("content"), str):
        text = "output_text" if item.get("role") == "assistant" else "input_text"
        found["content"] = [{"type": text, "text": item["content"]}]
    if kind in ("message", "function_call", "custom_tool_call"):
        found.setdefault("status", "completed")
    return found


def messages_of(items: Sequence[Item]) -> list[ChatMessage]:
    """The messages of a chat: what the model said in one turn is one of them. Raises RequestError."""
    turn = _ChatBuilder()
    for index, item in enumerate(items):
        place = f"input[{index}]"
        match item:
            case {"type": "message", "role": "assistant"}:
                turn.say(_text(item.get("content"), f"{place}.content"))
            case {"type": "message", "role": str(role)}:
                turn.other(ChatMessage(role, _parts(item.get("content"), f"{place}.content")))
            case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
                turn.call(ToolCall(FunctionCall(whole_name(item.get("namespace"), name), arguments), call_id))
            case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name), "input": str(text)}:
                name = whole_name(item.get("namespace"), name)
                turn.call(ToolCall(id=call_id, type="custom", custom=CustomCall(name, text)))
            case {
                "type": "function_call_output" | "custom_tool_call_output",
                "call_id": str(call_id),
                "output": output,
            }:
                turn.other(ChatMessage("tool", _text(output, f"{place}.output", UNSEEN), tool_call_id=call_id))
            case {"type": "reasoning"}:
                turn.reason(_text(item.get("content") or item.get("summary") or [], f"{place}.content"))
            case _:
                raise RequestError(f"{place} lacks a field of its type, such as role, call_id or output.", param=place)
    return turn.finish()


class _ChatBuilder:
    """Collects messages; those of the model that follow one another are one: its answer may have texts between calls
    and after them."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._assistant: ChatMessage | None = None

    def _assistant_message(self) -> ChatMessage:
        if self._assistant is None:
            self._assistant = ChatMessage("assistant")
            self._messages.append(self._assistant)
        return self._assistant

    def reason(self, text: str) -> None:
        self._go_on()
        own = self._assistant_message()
        own.reasoning = (own.reasoning or "") + text

    def say(self, text: str) -> None:
        self._go_on()
        own = self._assistant_message()
        own.content = f"{own.content or ''}{text}"

    def _go_on(self) -> None:
        """A text is the end of an answer that calls nothing."""
        if self._assistant is not None and self._assistant.content and not self._assistant.tool_calls:
            self._assistant = None

    def call(self, call: ToolCall) -> None:
        own = self._assistant_message()
        own.tool_calls = [*(own.tool_calls or ()), call]

    def other(self, message: ChatMessage) -> None:
        self._assistant = None
        self._messages.append(message)

    def finish(self) -> list[ChatMessage]:
        return self._messages


def _parts(content: Any, place: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{place} must be a text or a list of parts.", param=place)
    parts: list[ContentPart] = []
    for index, part in enumerate(content):
        match part:
            case {"type": "input_image", "image_url": str(url)}:
                parts.append(ContentPart("image_url", image_url=url))
            case {"type": "input_audio", "input_audio": {"data": str(data), **said}}:
                parts.append(ContentPart("input_audio", input_audio=InputAudio(data, str(said.get("format", "")))))
            case _:
                parts.append(ContentPart("text", _part_text(part, f"{place}[{index}]")))
    return parts


def _text(content: Any, place: str, instead: Mapping[str, str] = MappingProxyType({})) -> str:
    return content if isinstance(content, str) else "\n".join(_texts(content, place, instead))


def _texts(content: Any, place: str, instead: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """instead: texts in place of other parts, by their types. Raises RequestError for what is no text."""
    if not isinstance(content, list):
        raise RequestError(f"{place} must be a text or a list of parts.", param=place)
    return [_part_text(part, f"{place}[{index}]", instead) for index, part in enumerate(content)]


def _part_text(part: Any, place: str, instead: Mapping[str, str] = MappingProxyType({})) -> str:
    match part:
        case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)} if kind in instead:
            return instead[kind]
        case _:
            raise RequestError(f"{place} must be a part of text: only texts are supported.", param=place)


def whole_name(space: Any, name: str) -> str:
    """What a model calls a tool in a namespace; without one, its name."""
    return f"{space.rstrip('_')}__{name}" if isinstance(space, str) and space else name
