"""A worker: opens a device, joins the other workers and creates the model runner, in the required order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from tessera.config import EngineConfig
from tessera.errors import PlatformError
from tessera.layers.build import PIPELINE_GROUP, TENSOR_GROUP
from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Device
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.platform import Platform, WorkerSpec
from tessera.platform.runner import ModelRunner, Progress
from tessera.plugins.contract import check_members, check_takes
from tessera.runner.artifacts import artifacts_of
from tessera.runner.collectives import groups_of, join
from tessera.runner.invariance import refuse_variance
from tessera.runner.kv_memory import budget, least
from tessera.runner.runner import core_runner
from tessera.runner.services import Services

Report = Callable[[Progress], None]


def check_one_device(platform: Platform, spec: WorkerSpec) -> None:
    """Raises PlatformError for a worker that core's runner cannot drive."""
    if len(spec.devices) > 1:
        raise PlatformError(
            f"platform '{platform.name}' gives {len(spec.devices)} devices to worker {spec.rank}, but core's model "
            "runner drives one; place a worker for each device, or bring a model runner."
        )


_QUANTIZED, _POOLING = "quantized checkpoints", "models that answer with numbers"
_MEDIA = "images and sounds"
_INSTEAD = {
    _QUANTIZED: "use the unquantized model",
    _POOLING: "use one that generates text, or another platform",
    _MEDIA: 'serve the text alone with --limit-mm-per-prompt \'{"image": 0, "video": 0, "audio": 0}\'',
}
"""What to do where a platform's own runner does not take these; where it is a flag, to remove it."""
_NOT_TAKEN = ""
"""In place of a name in RUNNER_TAKES: what core's runner alone takes."""


class Worker:
    """One worker of an engine: makes the model runner that its executor runs steps with. spec: its rank and devices.
    rendezvous: a URL where the workers meet; unused if there is only one."""

    def __init__(self, config: EngineConfig, platform: Platform, spec: WorkerSpec, rendezvous: str = "") -> None:
        self.config, self.platform, self.spec, self.rendezvous = config, platform, spec, rendezvous
        self.world: Communicator = Alone()
        self.groups: Mapping[str, Communicator] = {}
        # What load() opened.
        self.devices: Sequence[Device] = ()
        # Torch's number of threads, if load() has changed it.
        self.threads_before: int | None = None
        self.runner: ModelRunner

    def load(self, report: Report) -> LoadedModel:
        platform, config = self.platform, self.config
        platform.enter_process(self.spec)
        if self.spec.threads is not None:
            self.threads_before = torch.get_num_threads()
            torch.set_num_threads(self.spec.threads)
        devices = self.devices = [platform.open(index) for index in self.spec.devices]
        artifacts = artifacts_of(config, platform, devices)
        for device in devices:
            device.artifacts = artifacts
            device.seed(config.seed)
        self.world = self.join_group(devices[0])  # before anything is asked of a device, which some libraries want
        granted = least([budget(config, device.memory()) for device in devices])
        self.groups = groups_of(config.parallel.mesh, self.world)
        services = Services(config, devices, self.groups, platform)
        own = self._own_runner(services)
        self.runner = own or self._cores_runner(services, report)
        check_members([*devices, self.world, self.runner], config.platform_levels)
        loaded = self.runner.load(granted)
        if own is not None:
            refuse_variance(platform, config, loaded.facts)
        services.accept(loaded.facts)
        return replace(loaded, facts=replace(loaded.facts, notes=(*loaded.facts.notes, *services.notes)))

    def enter_thread(self) -> None:
        """Called in every further thread that touches the devices, before it does."""
        for device in self.devices:
            device.enter_thread()

    def join_group(self, device: Device) -> Communicator:
        """The group of all workers."""
        return join(self.platform, self.spec, self.rendezvous, device)

    def _cores_runner(self, services: Services, report: Report) -> ModelRunner:
        check_one_device(self.platform, self.spec)
        return core_runner(services, self.platform, report)

    def _own_runner(self, services: Services) -> ModelRunner | None:
        """The platform's own runner, if it has one. Raises PlatformError for what the user asks for and the runner does
        not take."""
        own, config = self.platform.runner(services), self.config
        if own is None:
            return None
        check_takes(own)
        quantized = config.model.checkpoint.get("quantization_config") is not None
        stages = config.parallel.pipeline_parallel_size
        asked = (
            ("quantization", f"--quantization {config.model.quantization}", config.model.quantization is not None),
            ("quantization", _QUANTIZED, quantized),
            ("kv_cache_dtype", f"--kv-cache-dtype {config.cache.dtype}", config.cache.dtype != "auto"),
            ("check_kv_cache", "--check-kv-cache", config.cache.check),
            ("lora", "--enable-lora", config.lora.enable),
            ("drafts", "--speculative-config", config.scheduler.speculative is not None),
            (_NOT_TAKEN, '--speculative-config of the method "mtp"', config.scheduler.predicts),
            ("pooling", _POOLING, config.model.pooler is not None),
            ("media", _MEDIA, bool(config.model.modalities)),
            ("expert_parallel", "--enable-expert-parallel", config.parallel.expert_parallel),
            ("stages", f"--pipeline-parallel-size {stages}", stages > 1),
        )
        for name, what, given in asked:
            if given and name not in own.takes:
                instead = _INSTEAD.get(what, "remove the flag")
                raise PlatformError(
                    f"platform '{self.platform.name}' runs models its own way, which does not take {what}; {instead}."
                )
        return own

    @property
    def gives_output(self) -> bool:
        """Whether what this worker samples is the engine's output: the last pipeline stage samples, and all workers of
        its tensor group sample the same."""
        pipeline = self.groups[PIPELINE_GROUP]
        return pipeline.rank == pipeline.size - 1 and self.groups[TENSOR_GROUP].rank == 0

    def close(self) -> None:
        self.world.close()
        if self.spec.shared and self.threads_before is not None:
            torch.set_num_threads(self.threads_before)
