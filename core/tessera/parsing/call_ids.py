"""The ids of earlier calls in a chat, in the form that the model knows: it was trained on ids of its own, and some
templates refuse any other. A client may have them from another server, or, as Ollama's clients, have none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tessera.parsing.calls import CallSyntax


def with_known_ids(messages: Iterable[dict[str, Any]], calls: CallSyntax | None) -> None:
    """Changes the ids of calls and of their results, in place. messages: as chat templates take them. A result without
    an id belongs to the first call before it that has none yet."""
    if calls is None or not calls.demands_ids:
        return
    waiting: list[tuple[str | None, str]] = []
    number = 0
    for message in messages:
        for call in message.get("tool_calls") or ():
            own = call.get("id")
            call["id"] = calls.earlier_id(own, str(call["function"].get("name", "")), number)
            waiting.append((own, call["id"]))
            number += 1
        if message.get("role") == "tool":
            own = message.get("tool_call_id")
            found = next((pair for pair in waiting if own is None or pair[0] == own), None)
            if found is not None:
                waiting.remove(found)
            message["tool_call_id"] = calls.earlier_id(own, "", number) if found is None else found[1]
