"""How far an engine's greedy answers are those of the reference.

Where two tokens are nearly as likely, rounding decides, and what follows differs. So an answer is followed up to the
first token that is another; there it counts how much less likely the reference finds that token than its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from benchmarks.task import TOLERANCES


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Greedy answers to the prompts that are checked. near: for each token of each answer those that are likely there,
    and how far each one's log probability is below the likeliest's."""

    version: str
    prompts: list[list[int]]
    answers: list[list[int]]
    near: list[list[dict[int, float]]]


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """equal: tokens that are the reference's, of `compared`. gap: nats, the widest where an answer parts; 0 where none
    does, None where the token is further than the reference looked, which is the widest tolerance. reference: its
    version."""

    equal: int
    compared: int
    gap: float | None
    reference: str

    def holds(self, precision: str) -> bool:
        return self.gap is not None and self.gap <= TOLERANCES[precision]


def agreement(answers: Sequence[Sequence[int]], reference: Reference) -> Agreement:
    """Of the answers to the first so many prompts that are checked."""
    equal, compared, gaps = 0, 0, []
    for answer, expected, near in zip(answers, reference.answers, reference.near, strict=False):
        for token, best, likely in zip(answer, expected, near, strict=False):
            compared += 1
            if token != best:
                gaps.append(likely.get(token))
                break
            equal += 1
    return Agreement(equal, compared, _widest(gaps), reference.version)


def worst(found: Sequence[Agreement]) -> Agreement:
    """All of them as one."""
    equal, compared = sum(one.equal for one in found), sum(one.compared for one in found)
    return Agreement(equal, compared, _widest([one.gap for one in found]), found[0].reference)


def kept(path: Path, prompts: Sequence[Sequence[int]]) -> Reference | None:
    """What a file holds of the reference's answers to these prompts; None where it does not."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Reference)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return found if found.prompts == list(prompts) else None


def keep(path: Path, reference: Reference) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(reference))


def _widest(gaps: Sequence[float | None]) -> float | None:
    known = [gap for gap in gaps if gap is not None]
    return max(known, default=0.0) if len(known) == len(gaps) else None
