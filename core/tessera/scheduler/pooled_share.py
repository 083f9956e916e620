"""What prompts that are pooled may take of steps in which others decode.

Whoever reads an answer sees each step; whoever waits for vectors sees the last. So as long as requests decode, prompts
that are pooled take a small share of each step's time, and the whole of it when nobody decodes. How many tokens that is
depends on the model, the device and the rows beside them, and is learned from what steps took.
"""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array
from tessera.platform.device import Reason
from tessera.platform.launch import RequestView, Resource
from tessera.scheduler.budget import TokenBudget
from tessera.scheduler.requests import StepInFlight
from tessera.scheduler.rows import Rows, Work
from tessera.step_times import StepTimes

SHARE = 0.1
"""Of a step's time, beside what it takes for the rows that decode."""


class PooledShare(Resource):
    """Tokens that steps have for prompts that are pooled, while requests decode. Each step with rows that decode adds
    as many as fit its time; what is too little for the smallest part of a prompt is kept for the next one."""

    name, scope = "share of a step", "prompt"

    def __init__(self, rows: Rows, budget: TokenBudget) -> None:
        self._rows, self._total = rows, budget.total
        # Tokens: prompts are computed in parts of at least so many.
        self._unit = budget.max_per_request if budget.whole else budget.chunk_multiple
        self._times = StepTimes()
        # Most tokens that were computed beside rows that decode; what is not known is tried little by little.
        self._tried = 1
        # Tokens that steps had and nobody took.
        self._saved = 0
        # Whether a request that pools ran, or asked to start, since the last step was learned from.
        self._pools_now = False
        # Of the step that is being scheduled: tokens for all, and for requests that wait; None without a limit.
        self._room: int | None = None
        self._room_to_start = 0

    @property
    def admits(self) -> bool:
        """Whether a request that waits may start: those that run come first."""
        return self._room is None or self._room_to_start > 0

    def behind(self, work: Work) -> Array | None:
        """A mask of the rows that come after all others, waiting ones included; None if there are none."""
        pooled: Array = self._rows.pooled[work.rows]
        return pooled if self._room is not None and pooled.any() else None

    def begin_step(self) -> None:
        rows = self._rows
        running = rows.running
        pooled = rows.pooled[running]
        self._pools_now |= bool(pooled.any())
        decodes = ~pooled & (rows.num_computed_tokens[running] >= rows.num_prompt_tokens[running])
        self._room = self._saved if decodes.any() else None
        left = (rows.num_tokens[running] - rows.num_computed_tokens[running])[pooled].sum()
        self._room_to_start = self._saved - int(left)

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        self._pools_now |= request.pools
        if self._room is None or not request.pools:
            return num_tokens
        return min(num_tokens, self._room) or "requests that decode come first"

    def take(self, request: RequestView, num_tokens: int) -> None:
        if self._room is not None and request.pools:
            self._room -= num_tokens
            self._room_to_start -= num_tokens
            self._saved -= num_tokens

    def release(self, request: RequestView) -> None:
        """Never called: nothing is held from step to step."""

    def learn(self, step: StepInFlight, seconds: float) -> None:
        """A step was computed. seconds: that it took by itself."""
        if not step.num_tokens:
            return  # it only encoded an image
        self._times.add(step.num_tokens, seconds)
        decodes, wanted = len(step.rows) - len(step.prompts), self._pools_now or self._saved <= 0
        if decodes:
            self._tried = max(self._tried, step.num_tokens - decodes)
        if decodes and wanted:
            extra = self._extra(decodes)
            self._saved = min(self._saved + extra, max(extra, self._unit))
        self._pools_now = False

    def _extra(self, decodes: int) -> int:
        """Tokens for which a step with so many rows that decode takes hardly longer."""
        numbers = np.arange(min(2 * self._tried, self._total) + 1)
        seconds = self._times.seconds(decodes + numbers)
        return max(int(np.count_nonzero(seconds <= (1 + SHARE) * seconds[0])) - 1, 1)
