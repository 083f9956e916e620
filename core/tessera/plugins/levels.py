"""API levels: core supports the level it has and the one before, of each facet on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera.plugins.api import Api


def level_problem(facet: str, written_for: object, supported: Sequence[int]) -> str | None:
    """Why something written for a level cannot be used, and what to do; None where it can. supported: by core, the
    newest last."""
    if isinstance(written_for, bool) or not isinstance(written_for, int) or written_for < 0:
        return (
            f"the API level of {facet} must be a whole number from 0, not {str(written_for)[:40]}; correct the plugin"
        )
    if written_for > supported[-1]:
        return f"it was written for level {written_for} of {facet}, core has {supported[-1]}; upgrade tessera-llm"
    if written_for not in supported:
        levels = " and ".join(map(str, supported))
        return f"it was written for level {written_for} of {facet}, core supports {levels}; upgrade the plugin"
    return None


def levels_problem(written_for: object, api: Api) -> str | None:
    """The first problem among a manifest's levels, or None."""
    if not isinstance(written_for, Mapping):
        return "the levels of its manifest must be a mapping from facets to whole numbers; correct the plugin"
    for facet, level in written_for.items():
        if facet not in api.levels:
            near = get_close_matches(str(facet), api.levels, n=1)
            hint = f"did it mean {near[0]}?" if near else f"core has {', '.join(api.levels)}"
            return f"it names the facet '{str(facet)[:40]}', which core does not have; {hint}"
        problem = level_problem(facet, level, api.supported(str(facet)))
        if problem is not None:
            return problem
    return None
