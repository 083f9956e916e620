"""What a grammar demands of an answer that calls tools, as a structural tag, so that what is forced is what is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tessera.parsing.calls import CallSyntax, Format, Tool

Choice = Literal["auto", "required"]


def forced_calls(calls: CallSyntax, tools: Sequence[Tool], choice: Choice, *, parallel: bool) -> Format | None:
    """The structural tag; None if nothing is demanded. choice: required: the answer is calls of some of the tools.
    auto: it is text, and calls where the model begins one; their arguments are demanded only if a tool is strict.
    parallel: whether there may be several calls."""
    tags = [calls.tag(tool) for tool in tools]
    if choice == "required":
        several: dict[str, Any] = {
            "type": "tags_with_separator", "tags": tags, "separator": calls.separator, "at_least_one": True,
            "stop_after_first": not parallel,
        }  # fmt: skip
        return _whole(_around(several, calls.around))
    if not any(tool.strict for tool in tools) or not calls.begins:
        return None
    begin, end = calls.around
    if begin:
        several = {
            "type": "tags_with_separator", "tags": tags, "separator": calls.separator, "at_least_one": True,
            "stop_after_first": not parallel,
        }  # fmt: skip
        tags = [{"type": "tag", "begin": begin, "content": several, "end": end}]
    triggers = [next(one for one in calls.begins if tag["begin"].startswith(one)) for tag in tags]
    return _whole(
        {"type": "triggered_tags", "triggers": sorted(set(triggers)), "tags": tags, "stop_after_first": not parallel}
    )


def _around(content: Format, around: tuple[str, str]) -> Format:
    begin, end = around
    return {"type": "tag", "begin": begin, "content": content, "end": end} if begin or end else content


def _whole(content: Format) -> Format:
    return {"type": "structural_tag", "format": content}
