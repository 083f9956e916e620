"""Drafts that a layer of the model makes on the device: they come with the tokens of a step, and the next step verifies
them. So how many are wanted is said one step ahead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.engine import SpeculativeConfig
from tessera.scheduler.requests import StepInFlight
from tessera.scheduler.rows import Rows, Work
from tessera.scheduler.speculation import NgramProposer, Speculation
from tessera.step import StepOutput


class PredictedTokens:
    """A Proposer of the drafts that came with each row's newest token. max_drafts: of one row."""

    def __init__(self, rows: Rows, max_drafts: int) -> None:
        self._rows = rows
        # [rows, drafts] int32: as in StepOutput.
        self._drafts = np.full((rows.num_rows, max_drafts), -1, np.int32)
        # [rows]: how many tokens of which request they follow.
        self._behind = np.zeros(rows.num_rows, np.int64)
        self._keys = np.full(rows.num_rows, -1, np.int64)

    def keep(self, output: StepOutput) -> None:
        """Call it before the step's tokens are appended to their rows."""
        rows = output.rows
        self._drafts[rows] = -1
        self._drafts[rows, : output.drafts.shape[1]] = output.drafts
        self._behind[rows] = self._rows.num_tokens[rows] + output.counts
        self._keys[rows] = self._rows.key[rows]

    def propose(self, row: int, tokens: Array, max_drafts: int) -> Array:
        """None if the row has gone on since, or has another request."""
        if self._behind[row] != len(tokens) or self._keys[row] != self._rows.key[row]:
            return int32()
        drafts = self._drafts[row, :max_drafts]
        made: Array = drafts[: np.count_nonzero(np.cumprod(drafts >= 0))]
        return made


class PredictingSpeculation(Speculation):
    """Speculation with drafts that are made on the device, in the step before the one that verifies them.

    Making them takes time, so the times that lengths are chosen by are those of steps that verify drafts and make the
    next ones, and of steps that do neither. What the others lose is paid all the same.
    """

    def __init__(self, rows: Rows, max_drafts: int, clock: Callable[[], float]) -> None:
        self.predicted = PredictedTokens(rows, max_drafts)
        super().__init__(self.predicted, rows, max_drafts, clock)

    def draft(self, work: Work, room: int) -> list[Array]:
        self.num_ahead = 0
        return super().draft(work, room)

    def _wanted(self, row_numbers: Array, limits: Array) -> tuple[Array, bool]:
        wanted, tries = super()._wanted(row_numbers, limits)
        self.num_ahead = int(wanted.max())
        return wanted, tries

    def learn(self, step: StepInFlight, output: StepOutput, seconds: float) -> int:
        if len(output.drafts):
            self.predicted.keep(output)
        return super().learn(step, output, seconds)

    def _step_took(self, step: StepInFlight, output: StepOutput, seconds: float, num_accepted: int) -> None:
        verifies, makes = step.num_tokens > len(step.rows), len(output.drafts) > 0
        if verifies == makes or self.lengths.times.knows(len(step.rows)):
            self.lengths.step_took(seconds, len(step.rows), step.num_tokens, num_accepted, usual=verifies == makes)


def make_speculation(config: SpeculativeConfig, rows: Rows, max_drafts: int, clock: Callable[[], float]) -> Speculation:
    """By the method that is configured. max_drafts: of one row. clock: as of the scheduler."""
    if config.method == "mtp":
        return PredictingSpeculation(rows, max_drafts, clock)
    return Speculation(NgramProposer(config), rows, max_drafts, clock)
