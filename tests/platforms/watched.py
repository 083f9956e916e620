"""An executor that remembers what it ran, and what the host read of the device behind its back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tessera.config import EngineConfig
from tessera.executor.in_process import InProcessExecutor
from tessera.platform.device import Future
from tessera.plugins.levels import API, Api
from tessera.step import SchedulerOutput, StepOutput, TokenMasks
from tessera.testing import HostReads

WATCHED = "tests.platforms.watched:WatchedExecutor"


class WatchedExecutor(InProcessExecutor):
    """steps: as they were scheduled. host_reads: implicit ones inside execute and sample, where the device is
    asynchronous. most_in_flight: steps whose output had not been taken when another was launched."""

    def __init__(self, config: EngineConfig, api: Api = API) -> None:
        super().__init__(config, api)
        self.steps: list[SchedulerOutput] = []
        self.host_reads: list[str] = []
        self.in_flight = self.most_in_flight = 0

    @property
    def runner(self) -> Any:
        return self.worker.runner

    def execute(self, step: SchedulerOutput) -> Any:
        self.steps.append(step)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        with self._watching():
            return super().execute(step)

    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        with self._watching():
            return _Taken(self, super().sample(pending, masks))

    def _watching(self) -> AbstractContextManager[Any]:
        return _Reads(self.host_reads) if self.platform.capabilities.async_dispatch else nullcontext()


class _Reads(HostReads):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.lines = found


class _Taken:
    def __init__(self, executor: WatchedExecutor, future: Future[StepOutput]) -> None:
        self.executor, self.future = executor, future

    def done(self) -> bool:
        return self.future.done()

    def result(self) -> StepOutput:
        output = self.future.result()
        self.executor.in_flight -= 1
        return output
