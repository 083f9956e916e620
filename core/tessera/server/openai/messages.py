"""The messages of a chat: checked, and as plain data for the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tessera.errors import RequestError
from tessera.server.openai.not_served import asks_for_nothing
from tessera.server.openai.protocol import ChatMessage, ContentPart
from tessera.server.settings import Limits

# OpenAI's newer name for the system role, which few templates know.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def check_counts(raw: bytes, limits: Limits) -> None:
    """Raises RequestError.

    Looks at the undecoded JSON: a quote inside a text is escaped, so these byte strings are keys (or whole values).
    """
    for key, most, what in (
        (b'"role"', limits.messages, "messages"),
        (b'"type"', limits.content_parts, "content parts"),
        (b'"arguments"', limits.tool_calls, "tool calls"),
    ):
        if len(raw) >= most * len(key) and raw.count(key) > most:
            raise RequestError(f"messages holds at most {most} {what}.", param="messages")


def for_template(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Raises RequestError that names the place."""
    if not messages:
        raise RequestError("messages must have at least one message.", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: ChatMessage, place: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise RequestError(f"{place}.role must be one of {', '.join(_ROLES)}.", param=f"{place}.role")
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{place}.content is missing.", param=f"{place}.content")
    for name in ("audio", "function_call"):
        raw = getattr(message, name)
        if raw is not None and not asks_for_nothing(bytes(raw), ()):
            raise RequestError(f"{place}.{name} is not served yet: leave it out.", param=f"{place}.{name}")
    fields = {
        "role": _ROLES[message.role],
        "content": message.content if isinstance(message.content, str) else _parts(message.content, f"{place}.content"),
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": msgspec.to_builtins(message.tool_calls) if message.tool_calls else None,
        "reasoning_content": message.reasoning if message.reasoning is not None else message.reasoning_content,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _parts(parts: Sequence[ContentPart] | None, place: str) -> list[dict[str, str]] | str | None:
    if parts is None:
        return None
    texts = []
    for index, part in enumerate(parts):
        if part.type != "text":
            where = f"{place}[{index}].type"
            raise RequestError(f"{where} is {part.type[:40]!r}: only text parts are served.", param=where)
        if part.text is None:
            raise RequestError(f"{place}[{index}].text is missing.", param=f"{place}[{index}].text")
        texts.append({"type": "text", "text": part.text})
    return texts or ""
