"""A platform: its name, what its devices can do, and which of core's defaults it replaces.

A vendor must implement only the abstract method. Every other method has the default that its docstring states; None
selects core's own implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tessera.platform.attention import MixerBackend
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device, Reason
from tessera.platform.graph import GraphRunner
from tessera.platform.launch import Resource
from tessera.platform.model import ModelFacts
from tessera.platform.ops import NOT_PROMISED, OpSet
from tessera.platform.quantization import Scheme
from tessera.platform.runner import ModelRunner, RunnerServices
from tessera.platform.shapes import ShapePolicy

if TYPE_CHECKING:
    from tessera.config import EngineConfig, ParallelConfig

_FACETS = ("platform", "attention", "quantization", "launch", "collectives", "graph", "runner", "testing")
_OP_GROUPS = ("core", "quant", "moe", "sampling", "lora")

_FIRST = 0  # the level of all of them until one is raised

API_LEVELS: Mapping[str, int] = dict.fromkeys([*_FACETS, *(f"ops.{group}" for group in _OP_GROUPS)], _FIRST)
"""Core's API level of each facet and op group. Level 0 promises nothing: until the first tagged release, any release
may change the contract."""


@dataclass(frozen=True)
class DeviceInfo:
    """One device."""

    # shown to users
    name: str
    # for Platform.open()
    index: int = 0
    # total bytes; 0 if unknown
    memory: int = 0


@dataclass(frozen=True)
class Manifest:
    """What the hook `platforms` returns: data and dotted paths ("package.module:Name"). Creating one must not import
    torch and has no side effects."""

    # for --platform
    name: str
    # dotted path of () -> Probe
    probe: str
    # dotted path of the Platform class
    platform: str
    # API levels that it was written for, of facets and op groups where they are not `level`
    levels: Mapping[str, int] = field(default_factory=dict)
    # of all others
    level: int = 0
    # the environment variables that the package reads, by name, and what each does, on one line
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def api_levels(self) -> Mapping[str, int]:
        """The API level of each facet and op group that it was written for."""
        return {**dict.fromkeys(API_LEVELS, self.level), **self.levels}


@dataclass(frozen=True)
class Probe:
    """What a probe returns; core calls it in a child process with a time limit."""

    # 0 cannot run here; 10 a general host; 50 a device that runs on reference ops; 80 native ops; 100 a vendor's
    # package for its own chip
    score: int
    # why it has this score
    reason: str
    # those that it can use
    devices: tuple[DeviceInfo, ...] = ()


@dataclass(frozen=True)
class Capabilities:
    """What the devices can do."""

    # of weights and activations, the preferred one first
    dtypes: tuple[str, ...]
    # of slots, block tables and places in token buffers; with "int32", no launch has an int64 tensor
    index_dtype: str = "int64"
    # whether the host may run ahead of the device
    async_dispatch: bool = True
    # whether each launch must have one of ShapePolicy.keys(), so that the platform must bring such a policy
    static_shapes: bool = False


@dataclass(frozen=True)
class WorkerSpec:
    """One worker process and its devices."""

    # from 0 to world_size - 1
    rank: int
    # number of workers
    world_size: int
    # indices for open(), at least one; more than one needs a model runner of the platform's own
    devices: tuple[int, ...]
    # host threads; core gives torch so many before it opens a device, in a shared process too if the user asks for a
    # number; None leaves torch as it is
    threads: int | None = None
    # variables that the process starts with
    environment: Mapping[str, str] = field(default_factory=dict)
    # whether the process belongs to a Python user (LLM), so that the platform must not change anything process-wide
    shared: bool = False


def with_ranks(parallel: ParallelConfig) -> Sequence[WorkerSpec]:
    """One process per device, which finds its rank in the environment under the names that torchrun gives it; for
    Platform.placement(), where a library reads them when it is imported."""
    size, of_host = parallel.world_size, parallel.host_size

    def environment(rank: int) -> Mapping[str, str]:
        ranks = {"RANK": rank, "LOCAL_RANK": rank % of_host, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": of_host}
        return {name: str(value) for name, value in ranks.items()} if size > 1 else {}

    return [
        WorkerSpec(rank, size, devices=(rank % of_host,), threads=parallel.threads, environment=environment(rank))
        for rank in range(size)
    ]


@dataclass(frozen=True)
class Default:
    """A configuration value that a platform proposes for a field the user did not set, and why (shown at start-up)."""

    value: Any
    reason: str


LARGE_MEMORY = 70 << 30
"""Bytes from which a device gets the defaults of memory_defaults()."""


def memory_defaults(nbytes: int) -> Mapping[str, Default]:
    """The defaults of accelerators by the memory of one, for Platform.defaults(): one with LARGE_MEMORY or more holds
    the KV cache of many requests, and is only busy with steps of many tokens. Others have core's. nbytes: 0 if
    unknown."""
    if nbytes < LARGE_MEMORY:
        return {}
    reason = f"a device has {nbytes / 2**30:.0f} GiB of memory"
    return {
        "scheduler.max_num_seqs": Default(1024, reason),
        "scheduler.max_num_batched_tokens": Default(8192, reason),
    }


@dataclass(frozen=True)
class Problem:
    """Why a configuration cannot run on a platform, and what to change."""

    text: str


class Platform(ABC):
    """The class that a vendor implements. name: the same as in the manifest. capabilities: constant, the same before
    and after open(). Core creates one without arguments in the engine's process and in every worker's; the constructor
    must not touch a device."""

    name: str
    capabilities: Capabilities

    @abstractmethod
    def open(self, index: int) -> Device:
        """Opens a device. Called once in each process for each of its WorkerSpec.devices, in order, after
        enter_process(). index: of the device, from 0. Raises PlatformError, which says what to do, if the device is
        missing or in use."""

    def enter_process(self, spec: WorkerSpec) -> None:
        """The only method with process-wide effects (imports, threads, environment). If spec.shared, imports only."""

    def placement(self, parallel: ParallelConfig) -> Sequence[WorkerSpec]:
        """The worker processes of an engine, by rank. Called in the engine's process, first before any of them starts;
        the answer is the same each time. Workers that share a layer (tensor parallelism) have consecutive ranks, and
        pipeline stages follow one another (ParallelConfig.mesh). One process may also drive several devices: all of
        them are opened and reach the platform's own runner. If it is the only one, its groups have one worker. Ranks of
        a host follow one another too, ParallelConfig.host_size of them, and devices have the indices of their host.
        Default: one process per device, with its share of the host's threads."""
        size, of_host = parallel.world_size, parallel.host_size
        return [WorkerSpec(rank, size, devices=(rank % of_host,), threads=parallel.threads) for rank in range(size)]

    def ops(self, reference: OpSet) -> OpSet:
        """The op table with the platform's kernels: replace(reference, rms_norm=..., ...), which raises PlatformError
        for an unknown op. Called once, at load. Default: the reference."""
        return reference

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        """Accepts a quantization scheme, returns a transformed one, or returns the reason why not. A transformed scheme
        goes into the specs of the kernels that support it; prepare() still receives the parts of the offered scheme. If
        the answer is a reason, --quantization is refused, a checkpoint's weights in the scheme are decoded at load, and
        no kernel may support it. Default: accept. The kernel for products then decides: a checkpoint's weights that it
        declines are decoded too. The reference computes where there is no such kernel, and with --quantization."""
        return scheme

    def attention_backends(self) -> Sequence[MixerBackend[Any]]:
        """The attention backends in order of preference; the reference always comes last. Called once, at load. Each
        layer is bound to the first backend that supports it. Default: none, so the reference runs."""
        return ()

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        """The communicator of all workers. Called in each worker, unless there is only one, before anything is asked of
        the device, which some libraries want. device: the worker's, opened. rendezvous: a file:// URL, the same for all
        of them. Default: None, core's communicator over torch.distributed."""
        return None

    def graph_runner(self, device: Device) -> GraphRunner | Reason | None:
        """The graph runner that captures launches on an opened device. A reason: why there is none although the kind of
        device has graphs, which is said at start-up; launches run eagerly then. Default: None, they do without a
        word."""
        return None

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy | None:
        """How steps are split and padded if shapes are bounded, and what the scheduler may put into one step
        (ShapePolicy.rules). Called in the engine's process and in every worker's. Default: None, one launch per step of
        exactly its shape, and no step is forbidden."""
        return None

    def resources(self, model: ModelFacts) -> Sequence[Resource]:
        """Further limits on a step. They live in the scheduler's process and hold no device objects. Default: none."""
        return ()

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        """The problems because of which this configuration cannot run; the user sees all of them, one a line. It must
        not change the configuration. Called once in each worker, with the platform's defaults filled in: at op depth
        when the model is built, before any weight is read; at runner depth when the runner calls
        RunnerServices.accept(), or else after its load(). model: its caches are those of the worker's pipeline stage.
        Default: none."""
        return ()

    def batch_invariant(self, config: EngineConfig, model: ModelFacts) -> Reason | None:
        """Why the bits of a request's tokens and log probabilities may depend on what else is in the batch, or on how
        steps split the request (chunks, prefix hits, preemption, drafts); None if the platform promises that they never
        do. Asked with --batch-invariant only, which is refused with this reason. At op depth, so is a model with an op
        or a layer whose implementation does not promise it (Kernel.batch_invariant, MixerBackend.batch_invariant).
        Default: it does not promise that."""
        return NOT_PROMISED

    def compilations(self) -> int | None:
        """How many kernels this process has compiled for the device so far, or loaded from a cache of compiled ones;
        None: launches compile none. Where it is a number, warm-up launches kernels in all ways that requests can cause,
        and what is compiled afterwards is counted in /metrics. Asked in each step. Default: None."""
        return None

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        """Default values for fields that the user did not set; they are shown at start-up. Allowed are the fields of
        scheduler, cache.block_size and cache.prefix_caching, because all others are used before the model is known.
        Default: none."""
        return {}

    def runner(self, services: RunnerServices) -> ModelRunner | None:
        """The platform's own runner (runner depth). It computes everything; core does not call ops() and
        attention_backends(). Default: None, core's runner over the ops (op depth)."""
        return None
