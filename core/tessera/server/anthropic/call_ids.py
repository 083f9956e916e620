"""Calls and their results belong together by id, as Anthropic's API has it
(https://docs.claude.com/en/docs/agents-and-tools/tool-use/implement-tool-use): the user's message after calls has a
result for each of them, and no others. Messages of the same role that follow one another are one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.errors import RequestError
from tessera.server.anthropic.protocol import MessageParam

_ID_CHARS = 64
_MAX_NAMED = 8


def check_call_ids(messages: Sequence[MessageParam]) -> None:
    """Raises RequestError."""
    waiting: list[str] = []
    place, role = "messages", ""
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if message.role not in ("user", "assistant"):
            continue
        if message.role != role == "user":
            _check_answered(waiting, answered, place)
            waiting = []
        if message.role != role == "assistant":
            answered = set()
        role = message.role
        for number, block in _blocks(message):
            if role == "assistant" and block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                place = f"messages[{index}]"
                waiting.append(block["id"])
            if role == "user" and block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str):
                if block["tool_use_id"] not in waiting:
                    where, named = f"messages[{index}].content[{number}]", block["tool_use_id"][:_ID_CHARS]
                    raise RequestError(
                        f"{where}: unexpected tool_use_id in a tool_result block: {named}. Each tool_result must have "
                        "a tool_use with its id in the previous message.",
                        param=where,
                    )
                answered.add(block["tool_use_id"])
    _check_answered(waiting, answered, place)


def _check_answered(waiting: Sequence[str], answered: set[str], place: str) -> None:
    missing = [call_id for call_id in waiting if call_id not in answered]
    if missing:
        named = ", ".join(call_id[:_ID_CHARS] for call_id in missing[:_MAX_NAMED])
        raise RequestError(
            f"{place}: tool_use ids were found without tool_result blocks immediately after: {named}. Each tool_use "
            "must have a tool_result with its id in the next message.",
            param=place,
        )


def _blocks(message: MessageParam) -> Iterator[tuple[int, dict[str, Any]]]:
    if not isinstance(message.content, str):
        yield from enumerate(message.content)
