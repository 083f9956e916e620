"""A worker: opens a device, joins the other workers and creates the model runner, in the required order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tessera.config import EngineConfig
from tessera.errors import PlatformError
from tessera.layers.build import PIPELINE_GROUP, TENSOR_GROUP
from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Device, Future
from tessera.platform.platform import Platform, WorkerSpec
from tessera.platform.runner import CachePlan, LoadedModel, ModelRunner, Progress
from tessera.plugins.contract import check_members
from tessera.runner.collectives import groups_of, join
from tessera.runner.invariance import refuse_variance
from tessera.runner.kv_memory import budget
from tessera.runner.services import Services
from tessera.runner.stages import core_runner
from tessera.step import SchedulerOutput, StepOutput, TokenMasks

Report = Callable[[Progress], None]


class Worker:
    """One worker of an engine. spec: its rank and devices. rendezvous: a URL where the workers meet; unused if there is
    only one."""

    def __init__(self, config: EngineConfig, platform: Platform, spec: WorkerSpec, rendezvous: str = "") -> None:
        self.config, self.platform, self.spec, self.rendezvous = config, platform, spec, rendezvous
        self.world: Communicator = Alone()
        self.groups: Mapping[str, Communicator] = {}
        self.runner: ModelRunner

    def load(self, report: Report) -> LoadedModel:
        platform, config = self.platform, self.config
        platform.enter_process(self.spec)
        device = platform.open(self.spec.devices[0])
        device.seed(config.seed)
        granted = budget(config, device.memory())
        self.world = self.join_group(device)
        self.groups = groups_of(config.parallel.mesh, self.world)
        services = Services(config, device, self.groups, platform.capabilities)
        own = self._own_runner(services)
        self.runner = own or core_runner(services, platform, report)
        check_members([device, self.world, self.runner], config.platform_levels)
        loaded = self.runner.load(granted)
        if own is not None:
            refuse_variance(platform, config, loaded.facts)
        services.fill_defaults(platform, loaded.facts)
        return loaded

    def join_group(self, device: Device) -> Communicator:
        """The group of all workers."""
        return join(self.platform, self.spec, self.rendezvous, device)

    def _own_runner(self, services: Services) -> ModelRunner | None:
        """The platform's own runner, if it has one. It chooses the format of weights and of the KV cache itself, so the
        flags for these are refused. Raises PlatformError."""
        own, config = self.platform.runner(services), self.config
        asked = {
            f"--quantization {config.model.quantization}": config.model.quantization is not None,
            f"--kv-cache-dtype {config.cache.dtype}": config.cache.dtype != "auto",
            "--check-kv-cache": config.cache.check,
            "--enable-lora": config.lora.enable,
            "--speculative-config": config.scheduler.speculative is not None,
            f"--pipeline-parallel-size {config.parallel.pipeline_parallel_size}": (
                config.parallel.pipeline_parallel_size > 1
            ),
        }
        for option, given in asked.items():
            if own is not None and given:
                raise PlatformError(
                    f"platform '{self.platform.name}' runs models its own way, which does not take {option}; "
                    "remove the flag."
                )
        if own is not None and config.model.checkpoint.get("quantization_config") is not None:
            raise PlatformError(
                f"platform '{self.platform.name}' runs models its own way, which does not read quantized checkpoints; "
                "use the unquantized model."
            )
        return own

    @property
    def gives_output(self) -> bool:
        """Whether what this worker samples is the engine's output: the last pipeline stage samples, and all workers of
        its tensor group sample the same."""
        pipeline = self.groups[PIPELINE_GROUP]
        return pipeline.rank == pipeline.size - 1 and self.groups[TENSOR_GROUP].rank == 0

    def allocate(self, plan: CachePlan) -> None:
        self.runner.allocate(plan)

    def warm_up(self, report: Report) -> None:
        self.runner.warm_up(report)

    def execute(self, step: SchedulerOutput) -> Any:
        return self.runner.execute(step)

    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        return self.runner.sample(pending, masks)

    def close(self) -> None:
        self.world.close()
