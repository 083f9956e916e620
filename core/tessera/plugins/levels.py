"""API levels: core supports the level it has and the one before, of each facet on its own."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

SUPPORTED_BACK = 1


def level_problem(facet: str, written_for: object, core: int) -> str | None:
    """Why something written for a level cannot be used, and what to do; None where it can."""
    if isinstance(written_for, bool) or not isinstance(written_for, int) or written_for < 0:
        return f"the API level of {facet} must be a whole number from 0, not {str(written_for)[:40]}"
    if written_for > core:
        return f"it was written for level {written_for} of {facet}, core has {core}; upgrade tessera-llm"
    if written_for < core - SUPPORTED_BACK:
        return (
            f"it was written for level {written_for} of {facet}, core supports {core - SUPPORTED_BACK} and {core}; "
            "upgrade the plugin"
        )
    return None


def levels_problem(written_for: Mapping[str, int], core: Mapping[str, int]) -> str | None:
    """The first problem among a manifest's levels, or None."""
    for facet, level in written_for.items():
        if facet not in core:
            near = get_close_matches(facet, core, n=1)
            hint = f"did it mean {near[0]}?" if near else f"core has {', '.join(core)}"
            return f"it names the facet '{facet}', which core does not have; {hint}"
        problem = level_problem(facet, level, core[facet])
        if problem is not None:
            return problem
    return None
