"""Judges whether a reply is right."""

from __future__ import annotations

import json
import re

from tools.demo_model.items import Item


def is_right(item: Item, reply: str) -> bool:
    """Facts: contains the answer as a whole word. Arithmetic: as the last number. Lists: exactly. JSON and calls: as
    objects."""
    if item.kind in ("sum", "difference", "product"):
        return re.findall(r"-?\d+(?:\.\d+)?", reply)[-1:] == [item.expected]
    if item.kind == "list":
        return reply.strip() == item.expected
    if item.kind == "json":
        return _object(reply) == json.loads(item.expected)
    if item.kind == "call":
        calls = re.findall(r"<tool_call>(.*?)</tool_call>", reply, re.DOTALL)
        return len(calls) == 1 and _object(calls[0]) == json.loads(item.expected)
    return re.search(rf"(?<![\w-]){re.escape(item.expected)}(?![\w-])", reply) is not None


def _object(text: str) -> object:
    """The JSON value of text, or None if it is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
