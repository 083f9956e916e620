"""Results on their way from the device to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tessera.arrays import Array, int32
from tessera.ops import Sampled
from tessera.platform.device import Device, Future
from tessera.runner.scorer import Scoring
from tessera.step import RowLogprobs, StepOutput, StepStats


@dataclass(frozen=True)
class SampledRows:
    """What one launch drew, its copies to the host under way. drawing: places of the rows that draw; asked:
    alternatives each row asked for, -1 none."""

    rows: Array
    drawing: Array | slice
    asked: Array
    parts: tuple[Future[Any] | None, ...]

    @classmethod
    def copying(
        cls, device: Device, rows: Array, drawing: Array | slice, asked: Array, sampled: Sampled
    ) -> SampledRows:
        return cls(rows, drawing, asked, tuple(None if part is None else device.to_host(part) for part in sampled))

    def drawn(self) -> tuple[Array, Array]:
        """Rows that sample, and the token of each; waits for its copy."""
        copy = self.parts[0]
        assert copy is not None
        return self.rows[self.drawing], copy.result()[: len(self.rows)][self.drawing]

    def logprobs(self) -> list[RowLogprobs]:
        copies = [part.result() for part in self.parts[1:] if part is not None]
        if not copies:
            return []
        ids, values, ranks = copies
        drawing = np.arange(len(self.rows))[self.drawing].tolist()
        wanted = [(i, int(self.asked[i])) for i in drawing if self.asked[i] >= 0]
        return [
            RowLogprobs(int(self.rows[i]), ids[i : i + 1, : k + 1], values[i : i + 1, : k + 1], ranks[i : i + 1])
            for i, k in wanted
        ]


class PendingStep:
    """A step's output: waits for its copies when asked."""

    def __init__(self, step: int, parts: Sequence[SampledRows], scored: Sequence[Scoring], stats: StepStats) -> None:
        self.step, self.parts, self.scored, self.stats = step, parts, scored, stats

    def done(self) -> bool:
        drawn = all(copy is None or copy.done() for part in self.parts for copy in part.parts)
        return drawn and all(scoring.done() for scoring in self.scored)

    def result(self) -> StepOutput:
        began = perf_counter()
        drawn = [part.drawn() for part in self.parts]
        rows, tokens = (np.concatenate(parts) for parts in zip(*drawn, strict=True)) if drawn else (int32(), int32())
        return StepOutput(
            step=self.step,
            rows=rows,
            counts=np.ones(len(rows), np.int32),
            tokens=tokens,
            logprobs=[row for part in self.parts for row in part.logprobs()],
            stats=StepStats(self.stats.forward, self.stats.sample, perf_counter() - began, self.stats.fallbacks),
            prompt_logprobs=[scoring.result() for scoring in self.scored],
        )
