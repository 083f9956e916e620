"""The contract between the engine and whoever runs its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tessera.platform.device import Future
from tessera.platform.platform import Platform
from tessera.platform.runner import CachePlan, LoadedModel, Progress
from tessera.step import SchedulerOutput, StepOutput

if TYPE_CHECKING:
    from tessera.config import EngineConfig

Report = Callable[[Progress], None]


class Executor(ABC):
    """Runs one SchedulerOutput on all workers. The engine makes one by dotted path with (config) and calls, in this
    order, load, allocate, warm_up, then any number of execute and sample in pairs, close. platform: opened in this
    process for its answers as data (rules, resources, checks)."""

    platform: Platform

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @abstractmethod
    def load(self, report: Report) -> Sequence[LoadedModel]:
        """The model on every worker, as each pipeline stage has it; of its workers' figures the smallest. Raises
        ModelError, MemoryBudgetError, PlatformError."""

    @abstractmethod
    def allocate(self, plans: Sequence[CachePlan]) -> None:
        """plans: by stage."""

    @abstractmethod
    def warm_up(self, report: Report) -> None: ...

    @abstractmethod
    def execute(self, step: SchedulerOutput) -> Any:
        """Launches the forward. Returns before it is done where the device is asynchronous; what it returns is given to
        sample()."""

    @abstractmethod
    def sample(self, pending: Any) -> Future[StepOutput]:
        """Launches sampling of the step that execute() returned `pending` for."""

    @abstractmethod
    def close(self) -> None: ...
