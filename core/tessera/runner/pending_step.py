"""A step between its launch and its output: what the forward pass returned, and what was sampled, on the way to the
host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from tessera.arrays import Array, int32, ranges
from tessera.ops import Sampled
from tessera.platform.device import Device, Future
from tessera.platform.drafts import accepted
from tessera.runner.launch_builder import PreparedLaunch
from tessera.runner.observers import StepObserver
from tessera.runner.pooler import PooledRow
from tessera.runner.prompt_logprobs import Scoring
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput, StepStats


@dataclass(slots=True)  # not frozen: one is made in every step, and freezing slows that down
class ExecutedStep:
    """A step whose forward pass was launched."""

    step: SchedulerOutput
    # Each launch, with the hidden states that its forward pass returns: [S, hidden size], or [S + T, hidden size] with
    # ALL_POSITIONS. None on a pipeline stage that does not sample.
    results: Sequence[tuple[PreparedLaunch, Any]]
    # Spent on the host to launch it.
    seconds: float
    observers: Sequence[StepObserver]


class SampledTokens(NamedTuple):
    """What rows sampled in one launch, on the host."""

    # [n] int32.
    rows: Array
    # [n] int32: how many of `tokens` each row sampled.
    counts: Array
    tokens: Array
    # Of the rows whose requests want them.
    logprobs: list[RowLogprobs]


@dataclass(slots=True)
class SampledRows:
    """The sampled tokens of one launch, being copied to the host."""

    # sampled_rows, sampling and drafts of the PreparedLaunch.
    rows: Array
    sampling: Array | slice
    drafts: Array | None
    # [S] int32: how many alternatives each row wants; -1 for no log probabilities.
    num_logprobs: Array
    # Of the fields of Sampled.
    copies: tuple[Future[Any] | None, ...]

    @classmethod
    def copying(cls, device: Device, prepared: PreparedLaunch, num_logprobs: Array, sampled: Sampled) -> SampledRows:
        copies = tuple(None if part is None else device.to_host(part) for part in sampled)
        return cls(prepared.sampled_rows, prepared.sampling, prepared.drafts, num_logprobs, copies)

    def tokens(self) -> SampledTokens:
        """Waits for the copies. Of drafts, those that were accepted are among the tokens."""
        parts = [copy.result()[: len(self.rows)][self.sampling] for copy in self.copies if copy is not None]
        rows, num_logprobs, tokens = self.rows[self.sampling], self.num_logprobs[self.sampling], parts[0]
        first, counts = np.arange(len(rows)), np.ones(len(rows), np.int32)
        if self.drafts is not None:
            first, counts = accepted(self.drafts, tokens)
            tokens = tokens[ranges(first, counts)]
        logprobs = []
        if len(parts) > 1:
            ids, values, ranks = parts[1:]
            for begin, count in zip(first.tolist(), counts.tolist(), strict=True):
                k, part = int(num_logprobs[begin]), slice(begin, begin + count)
                if k >= 0:
                    row = RowLogprobs(int(rows[begin]), ids[part, : k + 1], values[part, : k + 1], ranks[part])
                    logprobs.append(row)
        return SampledTokens(rows[first], counts, tokens, logprobs)


@dataclass(slots=True)
class PendingDrafts:
    """The drafts of the rows of a launch that have sampled, being copied to the host."""

    # How many rows these are, and the most drafts of one.
    num_rows: int
    num_drafts: int
    # Of each run of the layer that makes them: which of the rows it computed, and their drafts.
    runs: list[tuple[Array, Future[Any]]]

    def done(self) -> bool:
        return all(copy.done() for _, copy in self.runs)

    def result(self) -> Array:
        """As StepOutput.drafts. Waits for the copies."""
        drafts = np.full((self.num_rows, self.num_drafts), -1, np.int32)
        for number, (rows, copy) in enumerate(self.runs):
            drafts[rows, number] = copy.result()
        return drafts


@dataclass(slots=True)
class PendingStep:
    """The future of a step's output; result() waits for the copies to the host."""

    step: int
    # By launch, in order; empty on a pipeline stage that does not sample.
    sampled: Sequence[SampledRows]
    prompt_logprobs: Sequence[Scoring]
    pooled: Sequence[PooledRow]
    # Without the seconds of the copies.
    stats: StepStats
    observers: Sequence[StepObserver]
    # Of the launches, in order; empty if the step makes none.
    drafts: Sequence[PendingDrafts] = ()

    def done(self) -> bool:
        copied = all(copy is None or copy.done() for rows in self.sampled for copy in rows.copies)
        return (
            copied
            and all(scoring.done() for scoring in self.prompt_logprobs)
            and all(row.done() for row in self.pooled)
            and all(drafts.done() for drafts in self.drafts)
        )

    def result(self) -> StepOutput:
        for observer in self.observers:
            observer.finish()
        began = perf_counter()
        parts = [SampledTokens(int32(), int32(), int32(), []), *(rows.tokens() for rows in self.sampled)]
        return StepOutput(
            step=self.step,
            rows=np.concatenate([part.rows for part in parts]),
            counts=np.concatenate([part.counts for part in parts]),
            tokens=np.concatenate([part.tokens for part in parts]),
            logprobs=[row for part in parts for row in part.logprobs],
            stats=structs.replace(self.stats, wait=perf_counter() - began),
            prompt_logprobs=[scoring.result() for scoring in self.prompt_logprobs],
            pooled=[row.result() for row in self.pooled],
            drafts=np.concatenate([drafts.result() for drafts in self.drafts]) if self.drafts else int32(),
        )
