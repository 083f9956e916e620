"""Tells a model of its tools in words, where its chat template has no place for them: which there are, how to call one,
and, in the chat so far, which calls it made and what they gave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.parsing.plain import Telling, written

Messages = list[dict[str, Any]]

_CALL = '{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}'
_INTRODUCTION = "You can call these functions. Each is described by a JSON object:"
_MAY = f"""To call a function, answer with nothing but a JSON object with its name and its arguments:
{_CALL}
To call several, answer with a JSON list of such objects. If no function is of use, answer as usual."""
_MUST = f"""Answer with nothing but a call, which is a JSON object with the function's name and its arguments:
{_CALL}"""


def told(
    messages: Messages, tools: Sequence[Mapping[str, Any]] | None, telling: Telling, *, required: bool
) -> Messages:
    """The chat with all that its template does not say. messages: as chat templates take them. tools: the tools; None
    for none. required: whether the answer has to be a call."""
    found = _calls_as_text(messages) if telling.calls else messages
    if not tools or not telling.tools:
        return found
    functions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    text = f"{_INTRODUCTION}\n{functions}\n\n{_MUST if required else _MAY}"
    role = "system" if telling.system else "user"
    if found and found[0]["role"] == role:
        return [_with_text(found[0], text, first=role == "user"), *found[1:]]
    return [{"role": role, "content": text}, *found]


def _calls_as_text(messages: Messages) -> Messages:
    """Calls as the model writes them, and their results as what the user says."""
    found: Messages = []
    names: dict[str, str] = {}
    for message in messages:
        if message.get("tool_calls"):
            names |= {call.get("id", ""): str(call["function"].get("name")) for call in message["tool_calls"]}
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            found.append(_with_text(rest, written(message["tool_calls"]), first=False))
        elif message["role"] == "tool":
            what = names.get(message.get("tool_call_id", ""), message.get("name") or "The function")
            found.append(
                _with_text({"role": "user", "content": message.get("content")}, f"{what} returned:", first=True)
            )
        else:
            found.append(message)
    return found


def _with_text(message: Mapping[str, Any], text: str, *, first: bool) -> dict[str, Any]:
    """The message with a text before or after its own."""
    content = message.get("content") or ""
    if isinstance(content, str):
        parts = filter(None, (text, content) if first else (content, text))
        return {**message, "content": "\n\n".join(parts)}
    part = {"type": "text", "text": text}
    return {**message, "content": [part, *content] if first else [*content, part]}
