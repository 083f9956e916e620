"""The contract between the engine and the executor that runs its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tessera.errors import PlatformError
from tessera.platform.device import Future
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.platform import Platform, WorkerSpec
from tessera.platform.runner import CachePlan, Progress
from tessera.platform.transfer import TokenStore
from tessera.step import SchedulerOutput, StepOutput, TokenMasks

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.config.engine import ParallelConfig

Report = Callable[[Progress], None]


def worker_specs(platform: Platform, parallel: ParallelConfig) -> Sequence[WorkerSpec]:
    """The workers of an engine. The devices of data-parallel engines follow each other. Raises PlatformError for a
    platform whose workers find their devices by themselves."""
    specs = platform.placement(parallel)
    rank = parallel.data_parallel_rank
    if not rank:
        return specs
    if any(spec.environment for spec in specs):
        raise PlatformError(
            f"platform '{platform.name}' has several workers find their devices by themselves, which does not go with "
            "--data-parallel-size; start one server for each replica, and tessera router in front of them."
        )
    first = rank * sum(len(spec.devices) for spec in specs)
    return [replace(spec, devices=tuple(first + device for device in spec.devices)) for spec in specs]


class Executor(ABC):
    """Runs steps on all workers. The engine creates one from its dotted path, with config, and calls, in this order:
    load(), allocate(), warm_up(), any number of pairs of execute() and sample(), close(). platform: loaded in this
    process for the data it returns (rules, resources, checks)."""

    platform: Platform

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @abstractmethod
    def load(self, report: Report) -> Sequence[LoadedModel]:
        """Loads the model on every worker. Returns one LoadedModel per pipeline stage. If the figures of a stage's
        workers differ, it has the most bytes of weights and workspace and the fewest granted and left for the cache.
        Raises ModelError, MemoryBudgetError, PlatformError."""

    @abstractmethod
    def allocate(self, plans: Sequence[CachePlan]) -> None:
        """plans: by stage."""

    @abstractmethod
    def warm_up(self, report: Report) -> None: ...

    @abstractmethod
    def execute(self, step: SchedulerOutput) -> Any:
        """Launches the forward pass. On an asynchronous device, returns before it is done. The result is passed to
        sample()."""

    @abstractmethod
    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        """Launches sampling for a step. pending: what execute() returned for it. masks: rows that may sample only some
        tokens; None if every row may sample any."""

    def token_store(self) -> TokenStore | None:
        """What reads and writes the KV cache for transfers between engines; called after allocate(). None if the cache
        cannot be read by tokens. Raises PlatformError if it lies in other processes. Default: that."""
        raise PlatformError(
            "--kv-transfer-config is limited to engines of one device each; remove it, or use --data-parallel-size "
            "instead of the other flags of parallelism."
        )

    def check_workers(self) -> None:
        """Called about once a second while there is nothing to run. Raises the error of a worker that has ended.
        Default: nothing, for executors without processes."""

    def enter_thread(self) -> None:
        """Called in a thread other than the one that loaded the model, before it calls other methods or takes outputs.
        Default: nothing, for executors whose devices are in other processes."""

    @abstractmethod
    def close(self) -> None: ...
