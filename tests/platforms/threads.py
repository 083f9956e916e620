"""An executor whose workers are threads of this process: tensor parallelism without processes to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.executor.base import Executor, Report
from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Future
from tessera.platform.platform import Platform, WorkerSpec
from tessera.platform.runner import CachePlan, LoadedModel
from tessera.plugins import load_platform
from tessera.runner.worker import Worker
from tessera.step import SchedulerOutput, StepOutput, TokenMasks

THREADS = "tests.platforms.threads:ThreadsExecutor"
PATIENCE = 60.0  # seconds until a rank that waits for one that failed gives up


class Table:
    """Where the ranks lay down what the others take."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size, timeout=PATIENCE)
        self.places: list[Any] = [None] * size


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

    def agree(self, values: Sequence[int]) -> Sequence[int]:
        return [max(column) for column in zip(*self._all(values), strict=True)]


class ThreadWorker(Worker):
    def __init__(self, config: EngineConfig, platform: Platform, spec: WorkerSpec, table: Table) -> None:
        super().__init__(config, platform, spec)
        self.table = table

    def join_group(self, device: Any) -> Communicator:
        return AtTable(self.table, self.spec.rank)


class ThreadsExecutor(Executor):
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
        self.threads = ThreadPoolExecutor(len(specs))

    def _each(self, call: Callable[..., Any], *by_rank: Sequence[Any]) -> list[Any]:
        futures = [self.threads.submit(call, *given) for given in zip(self.workers, *by_rank, strict=True)]
        return [future.result() for future in futures]

    def load(self, report: Report) -> LoadedModel:
        loaded: LoadedModel = self._each(lambda worker: worker.load(report))[0]
        return loaded

    def allocate(self, plan: CachePlan) -> None:
        self._each(lambda worker: worker.allocate(plan))

    def warm_up(self, report: Report) -> None:
        self._each(lambda worker: worker.warm_up(report))

    def execute(self, step: SchedulerOutput) -> Any:
        return self._each(lambda worker: worker.execute(step))

    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        future: Future[StepOutput] = self._each(lambda worker, own: worker.sample(own, masks), pending)[0]
        return future

    def close(self) -> None:
        self.threads.shutdown()
