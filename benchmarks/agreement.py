"""How far an engine's greedy answers are those of the reference.

Where two tokens are nearly as likely, rounding decides, and what follows differs. So an answer is followed up to the
first token that is another; there it counts how much less likely the reference finds that token than its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.record import Reference
from benchmarks.task import PLAIN

TOLERANCES: Mapping[str, float] = {PLAIN: 0.1, "int8": 0.3, "int4": 1.5}
"""By precision: nats by which the token may be less likely."""


@dataclass(frozen=True)
class Agreement:
    """equal: tokens that are the reference's, of `compared`. gap: nats, the widest where an answer parts; 0 where none
    does, infinite where the reference has the token not even among its likeliest."""

    equal: int
    compared: int
    gap: float

    def holds(self, precision: str) -> bool:
        return self.gap <= TOLERANCES[precision]


def agreement(answers: Sequence[Sequence[int]], reference: Reference) -> Agreement:
    """Of the answers to the first so many prompts that are checked."""
    equal, compared, gap = 0, 0, 0.0
    for answer, expected, near in zip(answers, reference.answers, reference.near, strict=False):
        for token, best, likely in zip(answer, expected, near, strict=False):
            compared += 1
            if token != best:
                gap = max(gap, likely.get(token, math.inf))
                break
            equal += 1
    return Agreement(equal, compared, gap)


def worst(found: Sequence[Agreement]) -> Agreement:
    """All of them as one."""
    return Agreement(sum(one.equal for one in found), sum(one.compared for one in found), max(one.gap for one in found))
