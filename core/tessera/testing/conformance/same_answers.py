"""Whether two runs of one model answered alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.testing.compare import TOLERANCES
from tessera.testing.conformance.case import ConformanceError

_SLACK = 10  # of a log probability, over the tolerance of one op: layers add up


class Answered(Protocol):
    @property
    def answers(self) -> Sequence[Sequence[int]]: ...
    @property
    def logprobs(self) -> Sequence[Sequence[float]]: ...


@dataclass(frozen=True)
class Answers:
    """logprobs: of each answer's tokens."""

    answers: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]

    @classmethod
    def of(cls, run: Answered, first: int = 0, last: int | None = None) -> Answers:
        """Those of some requests of a run, as they are now."""
        part = slice(first, last)
        return cls([list(answer) for answer in run.answers[part]], [list(row) for row in run.logprobs[part]])


def compare_answers(what: str, found: Answers, expected: Answers, dtype: str) -> None:
    """In float32 every token; in fewer bits up to where two tokens were as likely as each other. Raises
    ConformanceError."""
    slack = _SLACK * TOLERANCES[dtype]
    for number, (mine, theirs) in enumerate(zip(found.answers, expected.answers, strict=True)):
        said = f"{what}, request {number} in {dtype}"
        if len(mine) != len(theirs):
            raise ConformanceError(f"{said}: the answer has {len(mine)} tokens, not {len(theirs)}")
        place = next((i for i, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other), None)
        if place is None:
            continue
        if dtype == "float32" or not math.isclose(
            found.logprobs[number][place], expected.logprobs[number][place], rel_tol=slack, abs_tol=slack
        ):
            raise ConformanceError(f"{said}: token {place + 1} of the answer is {mine[place]}, not {theirs[place]}")
