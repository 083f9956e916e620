"""Compares an engine's results with the oracle's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.parity.oracle import Answer

TOLERANCE = 1e-4
MAX_EXCUSED = 0.02


@dataclass(frozen=True)
class Compared:
    """One prompt. positions: the number of logits compared (recomputed ones count again). diff: the largest; NaN stays
    NaN. equal: whether the tokens are equal, up to the point where a difference was excused."""

    positions: int
    missing: int
    diff: float
    bound: float
    equal: bool
    excused: bool

    @property
    def ok(self) -> bool:
        return self.equal and self.missing == 0 and self.diff <= self.bound


def compare(
    answer: Answer, tokens: Sequence[int], logits: Sequence[tuple[int, Tensor]], *, first_position: int = 0
) -> Compared:
    """logits: (position, [vocabulary]) as computed; every position from first_position on that an answer needs must be
    included. If the tokens differ where the oracle's two best logits are within TOLERANCE, the comparison ends
    there. Tokens that only prompts have come last in the vocabulary, where the oracle's ends before them."""
    want, end = answer.answer, len(answer.tokens) - 1  # the last token is never fed back
    parted = next((i for i, pair in enumerate(zip(tokens, want, strict=False)) if pair[0] != pair[1]), None)
    excused = parted is not None and answer.gap(parted) <= TOLERANCE
    if excused and parted is not None:
        end = len(answer.prompt) + parted
    equal = excused or tuple(tokens) == want
    bound = TOLERANCE * max(1.0, float(answer.logits.abs().max()))
    known = [(position, got) for position, got in logits if position < end]
    missing = len(set(range(first_position, end)) - {position for position, _ in known})
    if not known:
        return Compared(0, missing, 0.0, bound, equal, excused)
    positions = torch.tensor([position for position, _ in known])
    computed = torch.stack([got for _, got in known])[:, : answer.logits.shape[-1]].float()
    diff = (computed - answer.logits[positions]).abs().max()
    return Compared(len(known), missing, float(diff), bound, equal, excused)


@dataclass(frozen=True)
class Cell:
    """A line of the table. evidence: shows that the mode did what its name says; "" if it did not."""

    platform: str
    family: str
    mode: str
    prompts: int
    positions: int
    diff: float
    bound: float
    equal: int
    excused: int
    evidence: str
    ok: bool

    @classmethod
    def from_answers(cls, where: tuple[str, str, str], compared: Sequence[Compared], evidence: str) -> Cell:
        """where: platform, family, mode."""
        excused = sum(one.excused for one in compared)
        worst = max(compared, key=_excess)
        return cls(
            *where,
            prompts=len(compared),
            positions=sum(one.positions for one in compared),
            diff=worst.diff,
            bound=worst.bound,
            equal=sum(one.equal for one in compared),
            excused=excused,
            evidence=evidence,
            ok=bool(evidence) and all(one.ok for one in compared) and excused <= MAX_EXCUSED * len(compared),
        )

    @classmethod
    def together(cls, cells: Sequence[Cell]) -> Cell:
        """Merges cells of one platform and family in several modes."""
        worst = max(cells, key=_excess)
        return cls(
            worst.platform,
            worst.family,
            f"{len(cells)} modes",
            prompts=sum(cell.prompts for cell in cells),
            positions=sum(cell.positions for cell in cells),
            diff=worst.diff,
            bound=worst.bound,
            equal=sum(cell.equal for cell in cells),
            excused=sum(cell.excused for cell in cells),
            evidence="",
            ok=all(cell.ok for cell in cells),
        )


def _excess(result: Compared | Cell) -> float:
    """The difference relative to the bound; infinite for NaN."""
    return result.diff / result.bound if result.diff == result.diff else float("inf")


def compare_all(
    answers: Mapping[str, Answer],
    tokens: Mapping[str, Sequence[int]],
    logits: Mapping[str, Sequence[tuple[int, Tensor]]],
    *,
    cached: bool = False,
) -> list[Compared]:
    """Compares by request id. cached: prefix hits were not computed, so logits are only required from the first
    computed position on."""
    result = []
    for name, answer in answers.items():
        computed = logits.get(name, ())
        first = min((position for position, _ in computed), default=0) if cached else 0
        result.append(compare(answer, tokens[name], computed, first_position=first))
    return result
