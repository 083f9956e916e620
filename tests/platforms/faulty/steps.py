"""Mistakes in graphs, shapes of launches, copies between host and device, collectives and quantized weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.platform import (
    BoundOps,
    Buffers,
    Communicator,
    Device,
    Future,
    GraphRunner,
    Launch,
    LaunchKey,
    LaunchShape,
    LinearSpec,
    ModelFacts,
    OpSet,
    Packed,
    Ready,
    Reason,
    Scheme,
    ShapePolicy,
    StepShape,
    replace,
)
from tessera.platform.ops import HotCall
from tessera.testing.strict import BufferedLinear
from tests.platforms.faulty.making import Base, Plant, with_communicator, with_device, with_graphs

if TYPE_CHECKING:
    from tessera.config import EngineConfig


# ---- graphs ----------------------------------------------------------------------------------------------------------


class _Through(GraphRunner):
    def __init__(self, right: GraphRunner) -> None:
        self.right = right

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        return self.right.capture(key, forward, launch, buffers)

    def replay(self, executable: Any, launch: Launch) -> Any:
        return self.right.replay(executable, launch)

    def after_launch(self, executable: Any, launch: Launch) -> None:
        self.right.after_launch(executable, launch)

    def invalidate(self) -> None:
        self.right.invalidate()


class _OldTables(_Through):
    """What was captured keeps the block tables that it was captured with."""

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        tables = [plan.tables.clone() for plan in launch.plans]

        def with_old_tables(later: Launch) -> Any:
            plans = [dataclasses.replace(plan, tables=old) for plan, old in zip(later.plans, tables, strict=True)]
            return forward(dataclasses.replace(later, plans=plans))

        return super().capture(key, with_old_tables, launch, buffers)


class _NeverInvalid(_Through):
    """What is captured stays, whatever invalidate() says."""

    def __init__(self, right: GraphRunner) -> None:
        super().__init__(right)
        self.known: dict[LaunchKey, Any] = {}

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        return self.known.setdefault(key, super().capture(key, forward, launch, buffers))


OldTablesReplayed = with_graphs(_OldTables)
StaleAfterInvalidate = with_graphs(_NeverInvalid)


# ---- shapes ----------------------------------------------------------------------------------------------------------

UNNAMED_ROWS = 5


class _OneUnnamed(ShapePolicy):
    """A step of one row that decodes gets a launch of its own."""

    def __init__(self, right: ShapePolicy) -> None:
        self.right = right

    def keys(self) -> Sequence[LaunchKey]:
        return self.right.keys()

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        shapes = list(self.right.launches(step))
        if step.num_decode == 1:
            key = dataclasses.replace(shapes[0].key, rows=UNNAMED_ROWS, tokens=UNNAMED_ROWS)
            shapes[0] = dataclasses.replace(shapes[0], key=key)
        return shapes


def KeyUnnamed(base: Base) -> Base:  # named as the class that it makes
    class Faulty(base):
        def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
            return _OneUnnamed(super().shapes(model, config))

    return Faulty


# ---- copies ----------------------------------------------------------------------------------------------------------


def _pageable(device: Device, _: Callable[[int], Device]) -> Device:
    def to_device(values: Array, out: Tensor | None = None) -> Tensor:
        source = torch.tensor(values)
        return source.to(device.target) if out is None else out.copy_(source)

    device.to_device = to_device
    return device


def _awaiting(device: Device, _: Callable[[int], Device]) -> Device:
    start = device.to_host

    def to_host(tensor: Tensor) -> Future[Any]:
        return Ready(start(tensor).result())

    device.to_host = to_host
    return device


PageableCopies = with_device(_pageable)
ResultsAwaited = with_device(_awaiting)


# ---- collectives -----------------------------------------------------------------------------------------------------


class _Group(Communicator):
    def __init__(self, right: Communicator) -> None:
        self.right, self.rank, self.size, self.capturable = right, right.rank, right.size, right.capturable

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.right.all_reduce(x)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return self.right.all_gather(x, dim)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return self.right.broadcast(x, source)

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        return type(self)(self.right.new_group(ranks, role, options))

    def agree(self, values: Sequence[int]) -> Sequence[int]:
        return self.right.agree(values)

    def close(self) -> None:
        self.right.close()


class _Averaging(_Group):
    def all_reduce(self, x: Tensor) -> Tensor:
        return super().all_reduce(x) / self.size


class _GatheringBackwards(_Group):
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


def _with_int8(linear: type[Int8Linear]) -> Plant:
    def plant(base: Base) -> Base:
        class Platform(base):
            def ops(self, reference: OpSet) -> OpSet:
                return replace(super().ops(reference), linear=linear())

            def scheme(self, scheme: Scheme) -> Scheme | Reason:
                by_row = scheme.weight.dtype == "int8" and scheme.weight.granularity == "channel"
                return scheme if by_row and scheme.activation is None else "int8 with a scale a row alone"

        return Platform

    return plant


Int8 = _with_int8(Int8Linear)
"""Without a mistake."""
OneScaleForAllRows = _with_int8(_OneScale)
