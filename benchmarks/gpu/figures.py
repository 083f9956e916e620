"""A figure, its goal, and how far it is from it; and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """goal: what it should be at least or, where less is better, at most; None: it is there to compare with."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    less_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """To the goal: at least 1 where it is met."""
        if self.goal is None or not self.value:
            return None
        return self.goal / self.value if self.less_is_better else self.value / self.goal


@dataclass
class Measure:
    """The result of one measurement. reason: why it failed, was ended, or did not begin; "" if it is whole."""

    name: str
    reason: str = ""
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list)


def table(measures: Sequence[Measure], *, rehearsed: bool) -> str:
    """One line per figure."""
    rows = [("MEASURE", "FIGURE", "VALUE", "GOAL", "OF GOAL", "")]
    for one in measures:
        for figure in one.figures:
            goal = "" if figure.goal is None else f"{'<= ' if figure.less_is_better else ''}{figure.goal:,g}"
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
            said = f"{figure.value:,.4g} {figure.unit}".rstrip()
            rows.append((one.name, figure.name, said, goal, ratio, "rehearsed" if rehearsed else ""))
        if one.reason:
            rows.append((one.name, one.reason, "", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in (0, 2, 3, 4)]
    wide = max((len(row[1]) for row in rows if row[2]), default=0)
    first, third, fourth, fifth = widths
    lines = (
        f"{row[0]:<{first}}  {row[1]:<{wide}}  {row[2]:>{third}}  {row[3]:>{fourth}}  {row[4]:>{fifth}}  {row[5]}"
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def record(measures: Sequence[Measure], facts: Mapping[str, Any]) -> dict[str, Any]:
    """As --json writes it."""
    return {
        **facts,
        "measures": [
            {
                "name": one.name,
                "reason": one.reason,
                "seconds": round(one.seconds, 1),
                "figures": [
                    {
                        "name": figure.name,
                        "value": figure.value,
                        "unit": figure.unit,
                        "goal": figure.goal,
                        "of goal": figure.ratio,
                    }
                    for figure in one.figures
                ],
            }
            for one in measures
        ],
    }
