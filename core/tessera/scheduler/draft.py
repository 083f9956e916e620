"""A step while it is put together."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tessera.arrays import Array, int32
from tessera.scheduler.rows import Work

Kind = Literal["mixed", "prefill", "decode"]


class ScheduledStep:
    """Which rows compute how many tokens from where. kind: what the step may hold; a row with one token left decodes.

    short: a running request did not get its blocks, so nobody may start. promised [groups] int64: blocks that rows wait
    for until steps in flight retire.
    """

    def __init__(self, kind: Kind, budget: int, num_groups: int) -> None:
        self.kind = kind
        self.room = budget
        self.num_prefills = 0
        self.short = False
        self.promised = np.zeros(num_groups, dtype=np.int64)
        self._granted: list[tuple[Work, Array]] = []

    @property
    def empty(self) -> bool:
        return not self._granted

    @property
    def rows(self) -> Array:
        """That were granted tokens so far."""
        return np.concatenate([int32(), *(work.rows for work, _ in self._granted)])

    def may_hold(self, work: Work) -> Work:
        """Those of the rows that a step of this kind takes."""
        if self.kind == "mixed":
            return work
        decodes = work.left == 1
        return work.where(decodes if self.kind == "decode" else ~decodes)

    def grant(self, work: Work, tokens: Array) -> None:
        """tokens[i] of what is left to compute for each of work's rows, which may be none."""
        if not len(tokens):
            return
        self._granted.append((work, tokens))
        if work.decodes:
            self.room -= len(tokens)
        else:
            self.room -= int(tokens.sum())
            self.num_prefills += int(np.count_nonzero(work.left > 1))

    def grants(self) -> tuple[Work, Array]:
        """All that was granted, rows that decode first."""
        work, tokens = self._granted[0] if len(self._granted) == 1 else self._joined()
        if not self.num_prefills:
            return work, tokens
        order = np.argsort(work.left != 1, kind="stable")
        return Work(work.rows[order], work.starts[order], work.left[order]), tokens[order]

    def _joined(self) -> tuple[Work, Array]:
        parts = [(work.rows, work.starts, work.left, tokens) for work, tokens in self._granted]
        rows, starts, left, tokens = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Work(rows, starts, left), tokens
