"""Compares an engine's greedy answers with the reference's.

If two tokens are almost equally likely, rounding decides between them, and the rest of the answer differs. So answers
are compared up to the first different token; there, what counts is how much less likely it is for the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.task import TOLERANCES


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Greedy answers to the check prompts. near: for each token of each answer, the likely tokens there, and how far
    each one's log probability is below the most likely one's."""

    version: str
    prompts: list[list[int]]
    answers: list[list[int]]
    near: list[list[dict[int, float]]]


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """equal: how many of `compared` tokens equal the reference's. gap: the largest, in nats, where an answer diverges;
    0 if none does, None if the reference did not list the token (its list reaches to the widest tolerance). reference:
    its version."""

    equal: int
    compared: int
    gap: float | None
    reference: str

    def holds(self, precision: str) -> bool:
        return self.gap is not None and self.gap <= TOLERANCES[precision]


def agreement(answers: Sequence[Sequence[int]], reference: Reference) -> Agreement:
    """Compares the answers to the first len(answers) check prompts."""
    equal, compared, gaps = 0, 0, []
    for answer, expected, near in zip(answers, reference.answers, reference.near, strict=False):
        for token, best, likely in zip(answer, expected, near, strict=False):
            compared += 1
            if token != best:
                gaps.append(likely.get(token))
                break
            equal += 1
    return Agreement(equal, compared, _widest(gaps), reference.version)


def worst(agreements: Sequence[Agreement]) -> Agreement:
    """All of them combined."""
    equal, compared = sum(one.equal for one in agreements), sum(one.compared for one in agreements)
    return Agreement(equal, compared, _widest([one.gap for one in agreements]), agreements[0].reference)


def load(path: Path, prompts: Sequence[Sequence[int]]) -> Reference | None:
    """The reference's answers to these prompts from a file; None if it does not hold them."""
    try:
        reference = msgspec.json.decode(path.read_bytes(), type=Reference)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return reference if reference.prompts == list(prompts) else None


def save(path: Path, reference: Reference) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(reference))


def _widest(gaps: Sequence[float | None]) -> float | None:
    known = [gap for gap in gaps if gap is not None]
    return max(known, default=0.0) if len(known) == len(gaps) else None
