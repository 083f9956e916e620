"""One page about a run: what is broken, what is slow, and what is as expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.gpu.running import Result

_SLOW = 1.0
"""A figure that reaches less of its goal is slow."""


def verdict(results: Sequence[Result], bench: Mapping[str, Any], *, rehearsed: bool) -> str:
    """bench: what benchmarks.gpu wrote; empty if it did not run."""
    broken, slow, expected = list(_broken(results)), list[str](), list(_expected(results))
    for measure in bench.get("measures", ()):
        if measure["reason"]:
            broken.append(f"bench, {measure['name']}: {measure['reason']}")
        for figure in measure["figures"]:
            line = f"{figure['name']}: {figure['value']:,.4g} {figure['unit']}".rstrip()
            if figure["of goal"] is None:
                continue
            of_goal = f"{line}, {figure['of goal']:.2f} of the goal"
            (slow if figure["of goal"] < _SLOW else expected).append(of_goal)
        # A figure whose ops ran on the reference says little.
        broken += [
            f"{figure['name']}: {figure['unit']}"
            for figure in measure["figures"]
            if figure["name"].endswith("_on_reference") and figure["value"]
        ]
    lines = ["REHEARSED on the host: no figure says anything.", ""] if rehearsed else []
    for title, found in (("Broken", broken), ("Slow", slow), ("As expected", expected)):
        lines += [f"{title}: {len(found)}", *(f"  {line}" for line in found), ""]
    return "\n".join(lines)


def _broken(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.outcome == "passed":
            continue
        yield f"{result.name} {result.outcome}: {result.closing}"
        yield from (f"  {name}: {text}" for name, text in result.figures.get("failures", {}).items())


def _expected(results: Sequence[Result]) -> Iterator[str]:
    return (
        f"{result.name}, {result.seconds:.0f} s: {result.closing}" for result in results if result.outcome == "passed"
    )
