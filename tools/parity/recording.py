"""An instrumented engine: records the logits of every position it computes, and preempts requests on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from tessera.arrays import Array
from tessera.config import EngineConfig
from tessera.engine import engine as engine_module
from tessera.engine.engine import Engine
from tessera.executor.in_process import InProcessExecutor
from tessera.platform.attention import Caches
from tessera.platform.feature import WorkerFeature
from tessera.platform.launch import ALL_POSITIONS, Launch
from tessera.platform.model import Hidden, Model
from tessera.platform.runner import CachePlan, Progress
from tessera.request import Request
from tessera.scheduler.outputs import EngineCoreOutputs, SchedulerCounters
from tessera.scheduler.scheduler import Scheduler
from tessera.step import SchedulerOutput
from tessera.testing.conformance.drafts import KnownAnswers, Longest

RECORDING_EXECUTOR = "tools.parity.recording:RecordingExecutor"


@dataclass
class Record:
    """What an engine computed, and in what steps."""

    # By request id, (position, [vocabulary]) in the order of computation.
    logits: dict[str, list[tuple[int, Tensor]]] = field(default_factory=dict)
    # The most rows in a step.
    widest: int = 0
    # Steps that combine (parts of) prompts with decoding rows.
    mixed: int = 0
    # Grants that end before a row's known tokens do.
    cut: int = 0


class RecordingModel:
    """Wraps a model to record the logits of all tokens after each forward pass. Returns the model's own result.
    Launches must select all tokens."""

    def __init__(self, model: Model, hear: Callable[[Launch, Tensor], None]) -> None:
        self._model = model
        self._hear = hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, x: Tensor, launch: Launch, caches: Caches) -> Hidden:
        hidden = self._model.forward(x, launch, caches)
        self._hear(launch, self._model.logits(self._model.finish(hidden))[launch.key.num_samples :])
        return hidden


class _AllPositions(WorkerFeature):
    """Every launch returns the hidden states of all its tokens."""

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        return frozenset((ALL_POSITIONS,))


class RecordingExecutor(InProcessExecutor):
    """The ordinary executor, with recording. A row belongs to the request that opened it last."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.record = Record()
        self._request_of: dict[int, str] = {}

    def allocate(self, plans: Sequence[CachePlan]) -> None:
        super().allocate(plans)
        self.groups = plans[0].groups

    def warm_up(self, report: Callable[[Progress], None]) -> None:
        super().warm_up(report)
        runner: Any = self.worker.runner
        runner.model = RecordingModel(runner.model, self._hear)
        runner.builder.features = (*runner.builder.features, _AllPositions())

    def execute(self, step: SchedulerOutput) -> Any:
        self._request_of.update((opened.row, opened.request_id) for opened in step.opened)
        record, decodes = self.record, int((step.num_scheduled_tokens == 1).sum())
        record.widest = max(record.widest, len(step.rows))
        record.mixed += 0 < decodes < len(step.rows)
        record.cut += len(step.rows) - len(step.samples)
        return super().execute(step)

    def _hear(self, launch: Launch, logits: Tensor) -> None:
        for number in range(launch.num_rows):
            count, end = int(launch.query_lens_host[number]), int(launch.seq_lens_host[number])
            first = int(launch.query_start_loc[number])
            heard = self.record.logits.setdefault(self._request_of[int(launch.rows[number])], [])
            heard.extend((end - count + i, logits[first + i].clone()) for i in range(count))


class PreemptingScheduler(Scheduler):
    """Preempts on demand, as if the cache were full."""

    def preempt(self, keys: Iterable[int]) -> None:
        """Preempts the running requests among keys."""
        running = {int(self._rows.key[row]) for row in self._rows.running.tolist()}
        for key in running.intersection(keys):
            self._requests.preempt(self._requests[key])

    def split_short_prompts(self) -> None:
        """Splits every prompt where states can be copied, however little that would save."""
        self._budget.least_before_border = 1

    def draft(self, answers: Sequence[Sequence[int]], vocab: int) -> None:
        """Drafts what follows in these tokens, prompts included, as much as a row may have. Every fourth is wrong."""
        assert self.speculation is not None
        lengths = self.speculation.lengths
        self.speculation.proposer = KnownAnswers(answers, vocab)
        self.speculation.lengths = Longest(self._rows.num_rows, lengths.max_drafts)

    def preempt_all(self) -> None:
        self.preempt(self._rows.key[self._rows.running].tolist())


@dataclass
class Ran:
    """tokens: by request id, in the order of delivery."""

    tokens: dict[str, list[int]]
    record: Record
    counters: SchedulerCounters


class WatchedEngine(Engine):
    """The ordinary engine with the two classes above."""

    def __init__(self, config: EngineConfig) -> None:
        with patch.object(engine_module, "Scheduler", PreemptingScheduler):
            super().__init__(config, executor=RECORDING_EXECUTOR)
        self.steps = 0

    @property
    def scheduler(self) -> PreemptingScheduler:
        assert isinstance(self._scheduler, PreemptingScheduler)
        return self._scheduler

    @property
    def record(self) -> Record:
        assert isinstance(self._executor, RecordingExecutor)
        return self._executor.record

    def cache_bytes(self, num_tokens: int) -> int:
        """Bytes of a cache for this many tokens, including its null blocks. Every row has its state, whatever it
        holds."""
        assert isinstance(self._executor, RecordingExecutor)
        counts = (
            (group, group.num_blocks if group.kind == "state" else 1 + group.blocks_of(num_tokens))
            for group in self._executor.groups
        )
        return sum(group.block_bytes * count for group, count in counts)

    @property
    def bounded(self) -> bool:
        """Whether what a request keeps stops growing with its length."""
        assert isinstance(self._executor, RecordingExecutor)
        return all(group.window is not None or group.kind == "state" for group in self._executor.groups)

    @property
    def has_encoder(self) -> bool:
        """Whether requests keep what an encoder made."""
        assert isinstance(self._executor, RecordingExecutor)
        return any(group.kind == "cross" for group in self._executor.groups)

    def run(self, requests: Iterable[Request], after: Callable[[int, EngineCoreOutputs], None] | None = None) -> Ran:
        """Runs until all requests are answered. after: called with the number of each step (from 1) and its result."""
        ids = {}
        tokens: dict[str, list[int]] = {}
        for request in requests:
            ids[request.key] = request.request_id
            tokens[request.request_id] = []
            self.add(request)
        steps = 0
        while self.has_work:
            outputs = self.step()
            if outputs is None:
                continue
            steps += 1
            keys = np.repeat(outputs.keys, outputs.counts)
            for key, token in zip(keys.tolist(), outputs.tokens.tolist(), strict=True):
                tokens[ids[key]].append(token)
            if after is not None:
                after(steps, outputs)
        self.check_integrity()
        self.steps = steps
        return Ran(tokens, self.record, self.stats.counters)
