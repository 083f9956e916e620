"""A contract that has changed: core at level 2 of everything, with made-up shims for what stood at level 1, and a
platform for each facet as it was written then and one as it is now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from tessera.config import EngineConfig
from tessera.ops.norms import rms_norm
from tessera.platform import (
    API_LEVELS,
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Default,
    Device,
    GraphRunner,
    Kernel,
    Launch,
    LaunchKey,
    ModelRunner,
    NormSpec,
    OpSet,
    Plan,
    Platform,
    ShapePolicy,
)
from tessera.platform import replace as with_kernels
from tessera.platform.ops import HotCall
from tessera.plugins.levels import AdaptedKernel, Api, Removed, adapted, adapted_ops
from tessera.plugins.paths import load_path
from tessera.reference.attention import ReferenceAttention
from tessera.testing import ReferencePlatform
from tests.platforms.generated import numpy_platform
from tests.platforms.watched import WatchedExecutor

LEVELED = "tests.platforms.leveled:LeveledExecutor"
CALLS: list[str] = []
"""What the platforms' own members were called with."""


# ---- as they are today -----------------------------------------------------------------------------------------------


class DefaultsNow(ReferencePlatform):
    name = "leveled"

    def defaults(self, model: Any) -> Mapping[str, Default]:
        CALLS.append("defaults")
        return {"scheduler.max_num_seqs": Default(2, "its rows")}


class _Attention(ReferenceAttention):
    name = "own"
    fallback = False

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Any) -> Plan:
        CALLS.append("plan")
        return super().plan(launch, group, buffers)


class AttentionNow(ReferencePlatform):
    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (_Attention(),)


class _Graphs(GraphRunner):
    def capture(self, key: LaunchKey, forward: Any, launch: Launch, buffers: Any) -> Any:
        return forward

    def replay(self, executable: Any, launch: Launch) -> Any:
        return executable(launch)

    def keys(self, shapes: ShapePolicy, rows: int) -> Sequence[LaunchKey]:
        CALLS.append("keys")
        return shapes.keys()


class GraphNow(ReferencePlatform):
    def graph_runner(self, device: Device) -> GraphRunner:
        return _Graphs()


class _Exact(ShapePolicy):
    def __init__(self, longest: int) -> None:
        self.longest = longest

    def launches(self, step: Any) -> Any:
        from tessera.platform import ExactShapes

        CALLS.append("launches")
        return ExactShapes().launches(step)

    def keys(self) -> Sequence[LaunchKey]:
        return ()


class LaunchNow(ReferencePlatform):
    def shapes(self, model: Any, config: EngineConfig) -> ShapePolicy:
        return _Exact(config.model.max_model_len)


class _Norm(Kernel[NormSpec]):
    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> HotCall:
        def norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
            CALLS.append("norm")
            return rms_norm(spec, x, weight, out=out)

        return norm


class OpsNow(ReferencePlatform):
    def ops(self, reference: OpSet) -> OpSet:
        return with_kernels(reference, rms_norm=_Norm())


NumpyPlatform: Any = load_path(numpy_platform())
NumpyRunner: Any = load_path("tessera_numpy.runner:NumpyRunner")


class RunnerNow(NumpyPlatform):
    def runner(self, services: Any) -> ModelRunner:
        CALLS.append("runner")
        return NumpyRunner(services)


# ---- as they were at level 1 -----------------------------------------------------------------------------------------


class DefaultsThen(ReferencePlatform):
    """defaults() was called proposals() and was told nothing."""

    name = "leveled"

    def proposals(self) -> Mapping[str, Default]:
        CALLS.append("defaults")
        return {"scheduler.max_num_seqs": Default(2, "its rows")}


class _AttentionThen(_Attention):
    def plan(self, launch: Launch, group: AttentionGroup) -> Plan:  # type: ignore[override]  # what changed
        return super().plan(launch, group, None)


class AttentionThen(ReferencePlatform):
    """plan() had no buffers."""

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (_AttentionThen(),)


class _GraphsThen(_Graphs):
    def keys(self, shapes: ShapePolicy) -> Sequence[LaunchKey]:  # type: ignore[override]  # what changed
        return super().keys(shapes, 0)


class GraphThen(ReferencePlatform):
    """keys() was not told the rows."""

    def graph_runner(self, device: Device) -> GraphRunner:
        return _GraphsThen()


class LaunchThen(ReferencePlatform):
    """shapes() was told the longest request instead of the configuration."""

    def shapes(self, model: Any, longest: int) -> ShapePolicy:  # type: ignore[override]  # what changed
        assert isinstance(longest, int)
        return _Exact(longest)


@dataclass(frozen=True)
class _NormSpecThen:
    n: int
    dtype: str
    eps: float


class _NormThen(Kernel[_NormSpecThen]):
    """It binds the op that it replaces, by the name that this had."""

    def bind(self, spec: _NormSpecThen, ops: BoundOps, device: Device) -> HotCall:
        assert isinstance(spec, _NormSpecThen)
        reference = ops.reference("norm", NormSpec(spec.n, spec.dtype, spec.eps))

        def norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
            CALLS.append("norm")
            return reference(x, weight, out=out)

        return norm


class OpsThen(ReferencePlatform):
    """rms_norm was called norm, and its spec had no offset and asked for no quantised result."""

    def ops(self, reference: OpSet) -> OpSet:
        return with_kernels(reference, norm=_NormThen())


class RunnerThen(NumpyPlatform):
    """runner() was not told the services but what it took of them, in a mapping."""

    def runner(self, services: Any) -> ModelRunner:
        CALLS.append("runner")
        return NumpyRunner(services["all"])


# ---- the shims -------------------------------------------------------------------------------------------------------


def _backend(backend: AttentionBackend) -> AttentionBackend:
    return adapted(backend, AttentionBackend, plan=lambda old, launch, group, buffers: old.plan(launch, group))


def _graphs(graphs: GraphRunner) -> GraphRunner:
    return adapted(graphs, GraphRunner, keys=lambda old, shapes, rows: old.keys(shapes))


def older_norm(spec: NormSpec) -> _NormSpecThen | str:
    if spec.offset or spec.emit is not None:
        return "it was written for a level without offset and emit"
    return _NormSpecThen(spec.n, spec.dtype, spec.eps)


RENAMED = {"norm": "rms_norm"}


def _ops(old: Platform, reference: OpSet) -> OpSet:
    kernels = {"rms_norm": lambda kernel: AdaptedKernel(kernel, older_norm, RENAMED)}
    return adapted_ops(old, reference, kernels, RENAMED)


SHIMS = {
    "platform": lambda old: adapted(old, Platform, defaults=lambda old, model: old.proposals()),
    "attention": lambda old: adapted(
        old, Platform, attention_backends=lambda old: [_backend(one) for one in old.attention_backends()]
    ),
    "graph": lambda old: adapted(old, Platform, graph_runner=lambda old, device: _graphs(old.graph_runner(device))),
    "launch": lambda old: adapted(
        old, Platform, shapes=lambda old, model, config: old.shapes(model, config.model.max_model_len)
    ),
    "ops.core": lambda old: adapted(old, Platform, ops=_ops),
    "runner": lambda old: adapted(old, Platform, runner=lambda old, services: old.runner({"all": services})),
}

API_2 = Api(
    MappingProxyType(dict.fromkeys(API_LEVELS, 2)),
    shims={(facet, 1): shim for facet, shim in SHIMS.items()},
    removed={"Platform": {"proposals": Removed("platform", 2, "defaults")}},
)


class LeveledExecutor(WatchedExecutor):
    """With that core."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, API_2)
