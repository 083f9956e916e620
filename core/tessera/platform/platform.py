"""A platform: who it is, what its devices can do, and which of core's defaults it replaces.

Only an abstract method is required of a vendor. Everything else has the default stated beside it; None means core's
own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tessera.platform.attention import AttentionBackend
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device, Reason
from tessera.platform.graph import GraphRunner
from tessera.platform.launch import Resource, ShapePolicy, StepRules
from tessera.platform.model import ModelFacts
from tessera.platform.ops import OpSet
from tessera.platform.quantization import Scheme
from tessera.platform.runner import ModelRunner, RunnerServices

if TYPE_CHECKING:
    from tessera.config import EngineConfig, ParallelConfig

_FACETS = ("platform", "attention", "quantization", "launch", "collectives", "graph", "runner", "testing")
_OP_GROUPS = ("core", "quant", "moe", "state", "sampling", "kv", "lora", "spec")

_FIRST = 0  # the level of all of them until one is raised

API_LEVELS: Mapping[str, int] = dict.fromkeys([*_FACETS, *(f"ops.{group}" for group in _OP_GROUPS)], _FIRST)
"""Core's API level of each facet and op group. 0 is no promise: shapes may change with every release until the first
tagged one."""


@dataclass(frozen=True)
class DeviceInfo:
    """What one device is. memory: bytes in all; 0 where unknown."""

    name: str
    index: int = 0
    memory: int = 0


@dataclass(frozen=True)
class Manifest:
    """What the hook `platforms` returns: data and dotted paths ("package.module:Name"); making it imports no torch and
    changes nothing."""

    name: str
    probe: str  # dotted path of () -> Probe
    platform: str  # dotted path of the Platform class
    levels: Mapping[str, int] = field(default_factory=dict)  # API level of each facet and op group it was written for


@dataclass(frozen=True)
class Probe:
    """Asked in a child process with a time limit. score: 0 cannot run here; 10 a general host; 50 a device through
    reference ops; 80 native ops; 100 a vendor for its own chip."""

    score: int
    reason: str
    devices: tuple[DeviceInfo, ...] = ()


@dataclass(frozen=True)
class Capabilities:
    """Facts about work. dtypes: that weights and activations may have, the preferred first. async_dispatch: the host
    may run ahead of the device."""

    dtypes: tuple[str, ...]
    index_dtype: str = "int64"
    async_dispatch: bool = True
    static_shapes: bool = False
    capture: bool = False


@dataclass(frozen=True)
class WorkerSpec:
    """One process and its devices. rank: from 0 to world_size - 1. devices: indices for open(). threads: of the host,
    None lets the platform choose. environment: variables the process starts with. shared: it is the process of a Python
    user (LLM), where nothing process-wide may be changed."""

    rank: int
    world_size: int
    devices: tuple[int, ...]
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    shared: bool = False


@dataclass(frozen=True)
class Default:
    """A configuration value a platform proposes where the user said nothing, and why (shown at start)."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Problem:
    """Why a configuration cannot run on a platform, and what to change."""

    text: str


class Platform(ABC):
    """A vendor's answers to the contract. name: as the manifest has it. capabilities: facts, the same before and after
    open(). Made without arguments in the engine's process and in every worker's; making one touches no device."""

    name: str
    capabilities: Capabilities

    @abstractmethod
    def open(self, index: int) -> Device:
        """Opens a device, once in each process, after enter_process(). index: one of WorkerSpec.devices, from
        0. Raises PlatformError with what to do where the device is not there or is taken."""

    def enter_process(self, spec: WorkerSpec) -> None:
        """The only place with process-wide effects (imports, threads, environment). Where spec.shared, imports only."""

    def placement(self, parallel: ParallelConfig) -> Sequence[WorkerSpec]:
        """The processes of an engine, by rank; called before any is started. Default: one process a device. A mesh may
        be one process with many."""
        size = parallel.world_size
        return [WorkerSpec(rank=rank, world_size=size, devices=(rank,)) for rank in range(size)]

    def ops(self, reference: OpSet) -> OpSet:
        """The table with the platform's kernels: replace(reference, rms_norm=..., ...), which raises PlatformError for
        a name that is no op. Called once, at load. Default: the reference."""
        return reference

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        """Accept a quantization scheme, transform it, or say why not. A transformed one is that of specs whose
        kernel takes it; prepare() is given the parts of the one that was offered. Default: accept; its ops then decide,
        and the reference does the products that no kernel takes."""
        return scheme

    def attention_backends(self) -> Sequence[AttentionBackend]:
        """By preference; the reference is always last. Called once, at load; each layer gets the first that supports
        it. Default: none, so the reference."""
        return ()

    def communicator(self, spec: WorkerSpec, rendezvous: str) -> Communicator | None:
        """The group of all workers, in each of them; not asked where there is one. rendezvous: a file:// URL that all
        of them were given. Default: None, core's over torch.distributed."""
        return None

    def graph_runner(self, device: Device) -> GraphRunner | None:
        """What captures launches on an opened device. Default: None, eager."""
        return None

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy | None:
        """How steps are cut and padded, where shapes are bounded. Default: None, exact shapes, one launch a step."""
        return None

    def step_rules(self, model: ModelFacts) -> StepRules | None:
        """What a step may hold, for the scheduler; asked in the engine's process. Default: None, StepRules(), which
        forbids nothing."""
        return None

    def resources(self, model: ModelFacts) -> Sequence[Resource]:
        """Further limits on a step. They live where the scheduler does and hold no device objects. Default: none."""
        return ()

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        """What cannot run, as text; it cannot change the configuration. Default: nothing."""
        return ()

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        """Values filled only where the user said nothing, and shown: of scheduler, cache.block_size and
        cache.prefix_caching, since the rest is used before there is a model. Default: none."""
        return {}

    def runner(self, services: RunnerServices) -> ModelRunner | None:
        """A runner of its own (runner depth), which then computes all; core's ops and backends are not asked. Default:
        None, core's runner over the ops (op depth)."""
        return None
