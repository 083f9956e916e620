"""Calls and their outputs belong together by `call_id`, as OpenAI's Responses API has it: an output needs a call before
it, and a call needs an output. (A chat completion goes by its messages alone, see docs/tools.md.)"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.errors import RequestError
from tessera.server.generation.items import CALLS, OUTPUTS, Item

_ID_CHARS = 64
_OUTPUT_OF = {"function_call_output": "function call output", "custom_tool_call_output": "custom tool call output"}
_CALL_OF = {"function_call": "function call", "custom_tool_call": "custom tool call"}


def check_call_ids(items: Sequence[Item]) -> None:
    """items: of all turns. A call that was cut short can have no output. Raises RequestError."""
    unanswered: dict[str, str] = {}
    called: set[str] = set()
    for item in items:
        kind, call_id = item.get("type"), item.get("call_id")
        if not isinstance(call_id, str):
            continue
        if kind in CALLS:
            called.add(call_id)
            if item.get("status") != "incomplete":
                unanswered[call_id] = _CALL_OF[kind]
        elif kind in OUTPUTS:
            if call_id not in called:
                raise RequestError(
                    f"No tool call found for {_OUTPUT_OF[kind]} with call_id {call_id[:_ID_CHARS]}.", param="input"
                )
            unanswered.pop(call_id, None)
    for call_id, what in unanswered.items():
        raise RequestError(f"No tool output found for {what} {call_id[:_ID_CHARS]}.", param="input")
