"""Mistakes in graphs, shapes of launches, collectives and quantized weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tessera.platform import (
    BoundOps,
    Buffers,
    Communicator,
    Device,
    GraphRunner,
    Launch,
    LaunchKey,
    LaunchShape,
    LinearSpec,
    ModelFacts,
    OpSet,
    Packed,
    Reason,
    Scheme,
    ShapePolicy,
    StepShape,
    WorkerSpec,
    replace,
)
from tessera.platform.ops import HotCall
from tessera.runner.collectives import TorchCommunicator
from tessera.testing import StrictPlatform
from tessera.testing.strict.graphs import RecordingGraphs
from tessera.testing.strict.kernels import BufferedLinear
from tessera.testing.strict.shapes import Buckets

if TYPE_CHECKING:
    from tessera.config import EngineConfig


# ---- graphs ----------------------------------------------------------------------------------------------------------


class _OldTables(RecordingGraphs):
    """What was captured keeps the block tables that it was captured with."""

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        tables = [plan.tables.clone() for plan in launch.plans]

        def with_old_tables(later: Launch) -> Any:
            plans = [dataclasses.replace(plan, tables=old) for plan, old in zip(later.plans, tables, strict=True)]
            return forward(dataclasses.replace(later, plans=plans))

        return super().capture(key, with_old_tables, launch, buffers)


class _NeverInvalid(RecordingGraphs):
    """What is captured stays, whatever invalidate() says."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.known: dict[LaunchKey, Any] = {}

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        return self.known.setdefault(key, super().capture(key, forward, launch, buffers))


class OldTablesReplayed(StrictPlatform):
    def graph_runner(self, device: Device) -> GraphRunner:
        return _OldTables(self.current)


class StaleAfterInvalidate(StrictPlatform):
    def graph_runner(self, device: Device) -> GraphRunner:
        return _NeverInvalid(self.current)


# ---- shapes ----------------------------------------------------------------------------------------------------------


class _OneUnnamed(Buckets):
    """A step of one row that decodes gets a launch of its own."""

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        shapes = list(super().launches(step))
        if step.num_decode == 1:
            shapes[0] = LaunchShape(self._key("decode", 1, 1, step.bits), 0, 1, 1)
        return shapes


class KeyUnnamed(StrictPlatform):
    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        return _OneUnnamed(super().shapes(model, config).blocks)  # type: ignore[attr-defined]  # Buckets


# ---- collectives -----------------------------------------------------------------------------------------------------


def with_communicator(make: type[TorchCommunicator]) -> type[StrictPlatform]:
    class Platform(StrictPlatform):
        def communicator(self, spec: WorkerSpec, rendezvous: str) -> Communicator:
            return make.join(rendezvous, spec.rank, spec.world_size, self.open(spec.rank).target)

    return Platform


class _Averaging(TorchCommunicator):
    def all_reduce(self, x: Tensor) -> Tensor:
        return super().all_reduce(x) / self.size


class _GatheringBackwards(TorchCommunicator):
    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(super().all_gather(x, dim).chunk(self.size, dim)[::-1], dim)


AllReduceAverages = with_communicator(_Averaging)
GatheredBackwards = with_communicator(_GatheringBackwards)


# ---- quantized weights -----------------------------------------------------------------------------------------------


class Int8Linear(BufferedLinear):
    """Weights of 8 bits with a scale a row."""

    def supports(self, spec: LinearSpec) -> str | None:
        return super().supports(dataclasses.replace(spec, scheme=None))

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> HotCall:
        plain = super().bind(spec, ops, device)
        if spec.scheme is None:
            return plain

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            wide = weight["weight"].float() * self.scales(weight["scale"])[:, None]
            return plain(x.float(), {**weight, "weight": wide}, out=None).to(x.dtype)

        return linear

    def scales(self, scale: Tensor) -> Tensor:
        return scale


class _OneScale(Int8Linear):
    def scales(self, scale: Tensor) -> Tensor:
        return scale[:1].expand(len(scale))


class Int8Strict(StrictPlatform):
    """Without a mistake."""

    linear: type[Int8Linear] = Int8Linear

    def ops(self, reference: OpSet) -> OpSet:
        return replace(super().ops(reference), linear=self.linear())

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        known = scheme.weight.dtype == "int8" and scheme.weight.granularity == "channel" and scheme.activation is None
        return scheme if known else "int8 with a scale a row alone"


class OneScaleForAllRows(Int8Strict):
    linear = _OneScale
