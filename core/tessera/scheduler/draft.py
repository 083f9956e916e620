"""A step while it is put together."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tessera.arrays import Array, int32
from tessera.scheduler.rows import Work

Kind = Literal["mixed", "prefill", "decode"]


class StepDraft:
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
        self._rows: list[Array] = []
        self._starts: list[Array] = []
        self._tokens: list[Array] = []

    @property
    def empty(self) -> bool:
        return not self._rows

    @property
    def rows(self) -> Array:
        """That were granted tokens so far."""
        return np.concatenate([int32(), *self._rows])

    def holds(self, left: Array) -> Array:
        """Which of the rows that have so many tokens left it may hold, as a mask."""
        if self.kind == "mixed":
            return left > 0
        decodes: Array = left == 1
        return decodes if self.kind == "decode" else ~decodes

    def grant(self, work: Work, tokens: Array) -> None:
        """tokens[i] of what is left to compute for each of work's rows, which may be none."""
        if len(tokens):
            self._rows.append(work.rows)
            self._starts.append(work.starts)
            self._tokens.append(tokens)
            self.room -= int(tokens.sum())
            self.num_prefills += int(np.count_nonzero(work.left > 1))

    def grants(self) -> tuple[Array, Array, Array]:
        """rows, starts and numbers of tokens, all int32."""
        parts = (self._rows, self._starts, self._tokens)
        rows, starts, tokens = (part[0] if len(part) == 1 else np.concatenate(part) for part in parts)
        return rows, starts, tokens
