"""Converts chat messages to the form that templates expect: plain values, and content as text or as parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from tessera.errors import RequestError

# The form of a message's content that a template expects: one string, OpenAI's list of parts, or either.
ContentForm = Literal["string", "parts", "either"]

MAX_DEPTH = 64
_MAX_NAME_CHARS = 40
# A model's reasoning has several names. Most templates read the first one, gpt-oss's the second, Solar's the third.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def plain_value(value: Any, param: str, depth: int = 0) -> Any:
    """A copy of a JSON value that consists only of str, int, float, bool, None, list and dict.

    Raises RequestError on any other type and on deep nesting.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth == MAX_DEPTH:
        raise RequestError(f"{param} nests values deeper than {MAX_DEPTH} levels.", param=param)
    if isinstance(value, Mapping):
        return {_plain_key(key, param): plain_value(item, param, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item, param, depth + 1) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    raise RequestError(f"{param} holds a value of type {type(value).__name__!r}; only JSON values work.", param=param)


def _plain_key(key: Any, param: str) -> str:
    if not isinstance(key, str):
        raise RequestError(f"{param} holds an object with a key that is not a string.", param=param)
    return str.__str__(key)


def prepare_messages(
    messages: Sequence[Mapping[str, Any]], form: ContentForm, placeholders: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Copies of the messages in the form a template expects; the originals are not modified. placeholders: by the
    modalities that they may have, what stands for an image or a sound where content is one string.

    Fields that are None are removed, since templates test whether a field is present. Raises RequestError.
    """
    if not messages:
        raise RequestError("messages must hold at least one message.", param="messages")
    return [
        _prepare_message(message, f"messages[{index}]", form, placeholders) for index, message in enumerate(messages)
    ]


def _prepare_message(
    message: Mapping[str, Any], where: str, form: ContentForm, placeholders: Mapping[str, str]
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with a role and a content.", param="messages")
    fields = {key: value for key, value in plain_value(message, "messages").items() if value is not None}
    if not isinstance(fields.get("role"), str):
        raise RequestError(f"{where}.role must be a string.", param="messages")
    if "content" in fields:
        fields["content"] = _prepare_content(fields["content"], f"{where}.content", form, placeholders)
    if "tool_calls" in fields:
        _check_calls(fields["tool_calls"], f"{where}.tool_calls")
    reasoning = next((fields[name] for name in _REASONING_FIELDS if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, "reasoning": reasoning, **fields, "reasoning_content": reasoning}
    return fields


def _prepare_content(
    content: Any, where: str, form: ContentForm, placeholders: Mapping[str, str]
) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if form == "parts" else content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or a list of parts.", param="messages")
    parts = [_part(part, f"{where}[{index}]", placeholders) for index, part in enumerate(content)]
    if form == "string":
        return "\n".join(placeholders.get(part["type"]) or part["text"] for part in parts)
    return parts


def _part(part: Any, where: str, placeholders: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise RequestError(f"{where} must be an object with a type.", param="messages")
    kind = part.get("type")
    if isinstance(kind, str) and kind in placeholders:
        return part
    if kind != "text":
        name = repr(kind[:_MAX_NAME_CHARS]) if isinstance(kind, str) else "no string"
        raise RequestError(f"{where}.type is {name}; only parts of type 'text' are supported.", param="messages")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where}.text must be a string.", param="messages")
    return part


def _check_calls(tool_calls: Any, where: str) -> None:
    """Raises RequestError for what is no list of calls of functions."""
    if not isinstance(tool_calls, list):
        raise RequestError(f"{where} must be a list.", param="messages")
    for index, call in enumerate(tool_calls):
        if not isinstance(call.get("function") if isinstance(call, dict) else None, dict):
            raise RequestError(f"{where}[{index}].function must be an object.", param="messages")
