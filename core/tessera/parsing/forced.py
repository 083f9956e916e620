"""What a grammar demands of an answer that calls tools, as a structural tag, so that what is forced is what is read."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.parsing.calls import CallSyntax, Format, Tool


def forced_calls(calls: CallSyntax, tools: Sequence[Tool], *, required: bool, parallel: bool) -> Format | None:
    """The format of a structural tag; None if nothing is demanded. required: the answer is calls of some of the tools;
    else it is text, and calls where the model begins one, of which something is demanded only if a tool is strict or
    there may be one call at most. parallel: whether there may be several."""
    tags = [calls.tag(tool) for tool in tools]
    whole = calls.several(tags, parallel=parallel)
    if required:
        return whole
    if parallel and not any(tool.strict for tool in tools):
        return None
    if calls.text is not None:
        return {"type": "or", "elements": [calls.text, whole]}
    if not calls.begins:
        return None
    tags = [whole] if calls.around[0] else tags
    triggers = {next(one for one in calls.begins if tag["begin"].startswith(one)) for tag in tags}
    return {"type": "triggered_tags", "triggers": sorted(triggers), "tags": tags, "stop_after_first": not parallel}
