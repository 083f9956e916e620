"""An executor whose workers are threads of this process: tensor and pipeline parallelism without processes to start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from queue import SimpleQueue
from threading import Barrier, Lock
from typing import Any, Self

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.executor.base import Executor, Report
from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Future
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.platform import Platform, WorkerSpec
from tessera.platform.runner import CachePlan
from tessera.plugins import load_platform
from tessera.runner.worker import Worker
from tessera.step import SchedulerOutput, StepOutput, TokenMasks

THREADS = "tests.platforms.threads:ThreadsExecutor"
PATIENCE = 60.0  # seconds until a rank that waits for one that failed gives up


class Table:
    """Where the ranks lay down what the others take. sent: by sender and receiver."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size, timeout=PATIENCE)
        self.places: list[Any] = [None] * size
        self.sent: dict[tuple[int, int], SimpleQueue[Tensor]] = defaultdict(SimpleQueue)
        self.smaller: dict[tuple[str, tuple[int, ...]], Table] = {}
        self.lock = Lock()

    def of(self, role: str, ranks: Sequence[int]) -> Table:
        """The table of a group of some ranks."""
        with self.lock:
            return self.smaller.setdefault((role, tuple(ranks)), Table(len(ranks)))

    def queue(self, source: int, to: int) -> SimpleQueue[Tensor]:
        with self.lock:
            return self.sent[source, to]


class AtTable(Alone):
    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.size = table, rank, len(table.places)

    def _all(self, value: Any) -> list[Any]:
        self.table.places[self.rank] = value
        self.table.barrier.wait()
        found = list(self.table.places)
        self.table.barrier.wait()
        return found

    def all_reduce(self, x: Tensor) -> Tensor:
        total = torch.stack(self._all(x)).sum(0)
        self.table.barrier.wait()
        return x.copy_(total)  # in place, as communicators may

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(self._all(x), dim=dim)

    def send(self, x: Tensor, to: int) -> None:
        self.table.queue(self.rank, to).put(x)

    def recv(self, x: Tensor, source: int) -> Coming:
        return Coming(x, self.table.queue(source, self.rank))

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        return type(self)(self.table.of(role, ranks), list(ranks).index(self.rank))


class Coming:
    def __init__(self, x: Tensor, queue: SimpleQueue[Tensor]) -> None:
        self.x, self.queue = x, queue

    def wait(self) -> None:
        self.x.copy_(self.queue.get(timeout=PATIENCE))


class ThreadWorker(Worker):
    def __init__(self, config: EngineConfig, platform: Platform, spec: WorkerSpec, table: Table) -> None:
        super().__init__(config, platform, spec)
        self.table = table

    def join_group(self, device: Any) -> Communicator:
        return AtTable(self.table, self.spec.rank)


class ThreadsExecutor(Executor):
    """steps: as they were scheduled."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.platform = load_platform(config.platform, config.platform_levels)
        specs = self.platform.placement(config.parallel)
        table = Table(len(specs))
        self.workers = [
            ThreadWorker(
                config, load_platform(config.platform, config.platform_levels), replace(spec, shared=True), table
            )
            for spec in specs
        ]
        self.stage_of = [config.parallel.mesh.place("pipeline", spec.rank) for spec in specs]
        # One of each worker, which runs all its steps.
        self.threads = [ThreadPoolExecutor(1) for _ in specs]
        self.steps: list[SchedulerOutput] = []

    def _each(self, call: Callable[..., Any], *by_rank: Sequence[Any]) -> list[Any]:
        given = zip(self.threads, self.workers, *by_rank, strict=True)
        futures = [thread.submit(call, *of_rank) for thread, *of_rank in given]
        return [future.result() for future in futures]

    def load(self, report: Report) -> list[LoadedModel]:
        loaded: list[LoadedModel] = self._each(lambda worker: worker.load(report))
        return [loaded[rank] for _, (rank, *_) in groupby(range(len(loaded)), key=lambda rank: self.stage_of[rank])]

    def allocate(self, plans: Sequence[CachePlan]) -> None:
        self._each(lambda worker, stage: worker.runner.allocate(plans[stage]), self.stage_of)

    def warm_up(self, report: Report) -> None:
        self._each(lambda worker: worker.runner.warm_up(report))

    def execute(self, step: SchedulerOutput) -> Any:
        self.steps.append(step)
        return self._each(lambda worker: worker.runner.execute(step))

    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        futures = self._each(lambda worker, own: worker.runner.sample(own, masks), pending)
        (output,) = (future for worker, future in zip(self.workers, futures, strict=True) if worker.gives_output)
        return output

    def close(self) -> None:
        for thread in self.threads:
            thread.shutdown()
