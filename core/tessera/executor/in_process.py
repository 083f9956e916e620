"""The executor for a single worker in the engine's own process, and a loader that only plans, with meta tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.config import EngineConfig
from tessera.executor.base import Executor, Report, worker_specs
from tessera.platform.device import Future
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.runner import CachePlan
from tessera.platform.transfer import TokenStore
from tessera.plugins import load_platform
from tessera.plugins.levels import API, Api
from tessera.runner.kv_memory import budget
from tessera.runner.meta import meta_runner
from tessera.runner.worker import Worker
from tessera.step import SchedulerOutput, StepOutput, TokenMasks


class InProcessExecutor(Executor):
    """Runs one worker in this process. api: core's API levels and shims for platforms."""

    def __init__(self, config: EngineConfig, api: Api = API) -> None:
        super().__init__(config)
        self.platform = load_platform(config.platform, config.platform_levels, api)
        self.worker = self.make_worker()

    def make_worker(self) -> Worker:
        """The only one. In a process that is the user's, torch keeps its number of threads unless `threads` is
        given."""
        (spec,) = worker_specs(self.platform, self.config.parallel)
        if self.config.embedded:
            threads = spec.threads if "parallel.threads" in self.config.explicit_fields else None
            spec = replace(spec, shared=True, threads=threads)
        return Worker(self.config, self.platform, spec)

    def load(self, report: Report) -> list[LoadedModel]:
        return [self.worker.load(report)]

    def allocate(self, plans: Sequence[CachePlan]) -> None:
        (plan,) = plans
        self.worker.runner.allocate(plan)

    def warm_up(self, report: Report) -> None:
        self.worker.runner.warm_up(report)

    def execute(self, step: SchedulerOutput) -> Any:
        return self.worker.runner.execute(step)

    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        return self.worker.runner.sample(pending, masks)

    def token_store(self) -> TokenStore | None:
        return self.worker.runner.token_store()

    def enter_thread(self) -> None:
        self.worker.enter_thread()

    def close(self) -> None:
        self.worker.close()


class MetaLoader:
    """A tessera.engine.startup.Loader that opens the first worker's device but loads no weights."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.platform = load_platform(config.platform, config.platform_levels)

    def load(self, report: Report) -> list[LoadedModel]:
        spec = self.platform.placement(self.config.parallel)[0]
        self.platform.enter_process(spec)
        device = self.platform.open(spec.devices[0])
        granted = budget(self.config, device.memory())
        return [
            meta_runner(self.config, self.platform, spec, device, stage, report).load(granted)
            for stage in range(self.config.parallel.pipeline_parallel_size)
        ]
