"""Mistakes in graphs, shapes of launches, copies between host and device, collectives and quantized weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops.quantize import meaning
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
    StepRules,
    StepShape,
    replace,
)
from tessera.platform.collectives import Transfer
from tessera.platform.ops import HotCall
from tessera.testing.strict import BufferedLinear
from tests.platforms.faulty.making import Base, Plant, with_communicator, with_device, with_graphs, with_ops

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

    def rules(self) -> StepRules:
        return self.right.rules()

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

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        return type(self)(self.right.new_group(ranks, role, options))

    def send(self, x: Tensor, to: int) -> None:
        self.right.send(x, to)

    def recv(self, x: Tensor, source: int) -> Transfer:
        return self.right.recv(x, source)

    def close(self) -> None:
        self.right.close()


class _Averaging(_Group):
    def all_reduce(self, x: Tensor) -> Tensor:
        return super().all_reduce(x) / self.size


class _LastUnsummed(_Group):
    """The last rank keeps what it has brought."""

    def all_reduce(self, x: Tensor) -> Tensor:
        mine, total = x.clone(), super().all_reduce(x)
        return total.copy_(mine) if self.rank == self.size - 1 else total


class _OneScratch(_Group):
    """The sums of all calls of a shape are in the same memory."""

    def all_reduce(self, x: Tensor) -> Tensor:
        found = super().all_reduce(x.clone())
        kept = vars(self).setdefault("kept", {})
        return kept.setdefault((found.shape, found.dtype), found).copy_(found)


class _GatherMissing(_Group):
    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        raise NotImplementedError("not written yet")


class _GatheringBackwards(_Group):
    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(super().all_gather(x, dim).chunk(self.size, dim)[::-1], dim)


class _OthersRounded(_Group):
    """What the others bring has fewer bits than what a rank has itself."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + (super().all_reduce(x.bfloat16()) - x.bfloat16()).to(x.dtype)


class _SendsAsItLies(_Group):
    """The numbers are sent as they lie in memory, whatever the strides."""

    def send(self, x: Tensor, to: int) -> None:
        super().send(x.as_strided(x.shape, torch.empty(x.shape).stride()), to)


class _OneInbox(_Group):
    """All transfers of a shape arrive in the same memory, from where they are taken when all are there."""

    def recv(self, x: Tensor, source: int) -> Transfer:
        inboxes, coming = vars(self).setdefault("inboxes", {}), vars(self).setdefault("coming", [])
        inbox = inboxes.setdefault((x.shape, x.dtype), torch.empty_like(x))
        coming.append(super().recv(inbox, source))
        return _Taken(x, inbox, coming)


class _Taken:
    def __init__(self, x: Tensor, inbox: Tensor, coming: list[Transfer]) -> None:
        self.x, self.inbox, self.coming = x, inbox, coming

    def wait(self) -> None:
        while self.coming:
            self.coming.pop(0).wait()
        self.x.copy_(self.inbox)


AllReduceRounded = with_communicator(_OthersRounded)
SentAsItLies = with_communicator(_SendsAsItLies)
OneInbox = with_communicator(_OneInbox)
AllReduceInScratch = with_communicator(_OneScratch)
GatherMissing = with_communicator(_GatherMissing)
AllReduceAverages = with_communicator(_Averaging)
LastRankUnsummed = with_communicator(_LastUnsummed)
GatheredBackwards = with_communicator(_GatheringBackwards)


# ---- devices ---------------------------------------------------------------------------------------------------------


def _in_mb(device: Device, _: Callable[[int], Device]) -> Device:
    exact = device.memory()
    device.memory = lambda: dataclasses.replace(exact, total=exact.total >> 20, free=exact.free >> 20)
    return device


def _of_the_first(device: Device, opened: Callable[[int], Device]) -> Device:
    device.memory = opened(0).memory
    return device


def _forgetful(device: Device, _: Callable[[int], Device]) -> Device:
    def peak(run: Callable[[], object]) -> int:
        run()
        return 0

    device.peak = peak
    return device


PeakForgotten = with_device(_forgetful)
MemoryInMB = with_device(_in_mb)
MemoryOfTheFirst = with_device(_of_the_first)


# ---- quantized weights -----------------------------------------------------------------------------------------------


def served(scheme: Scheme) -> Scheme | Reason:
    kinds = ("int8", "channel"), ("int4", "group")
    kind = scheme.weight.dtype, scheme.weight.granularity
    if kind in kinds and scheme.weight.symmetric and scheme.activation is None:
        return scheme
    return "only int8 with a scale per row and int4 with a scale per group are supported"


class QuantizedLinear(BufferedLinear):
    """Weights of 8 bits with a scale per row, and of 4 bits with a scale per group."""

    def supports(self, spec: LinearSpec) -> str | None:
        taken = spec.scheme and served(spec.scheme)
        return taken if isinstance(taken, str) else super().supports(dataclasses.replace(spec, scheme=None))

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> HotCall:
        plain, scheme = super().bind(dataclasses.replace(spec, scheme=None), ops, device), spec.scheme
        if scheme is None:
            return plain

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            parts = {"weight": self.elements(weight["weight"]), "scale": self.scales(weight["scale"])}
            wide = {name: tensor.float() for name, tensor in weight.items()} | {"weight": meaning(parts, scheme)}
            return plain(x.float(), wide, out=None).to(x.dtype)

        return linear

    def elements(self, stored: Tensor) -> Tensor:
        return stored

    def scales(self, scale: Tensor) -> Tensor:
        return scale


class _BlocksOfTheNextRow(BufferedLinear):
    def decoded(self, weight: Packed, scheme: Scheme) -> Tensor:
        return super().decoded(weight, scheme).roll(1, 0)


class _BlocksOfOneRowTurned(BufferedLinear):
    """The blocks of a row are read from the second on."""

    def decoded(self, weight: Packed, scheme: Scheme) -> Tensor:
        return super().decoded({**weight, "weight": weight["weight"].roll(-1, -2)}, scheme)


class _OneScale(QuantizedLinear):
    def scales(self, scale: Tensor) -> Tensor:
        return scale[:1].expand_as(scale)


class _ScalesOfTheNextRow(QuantizedLinear):
    def scales(self, scale: Tensor) -> Tensor:
        return scale.roll(1, 0)


class _NibblesSwapped(QuantizedLinear):
    def elements(self, stored: Tensor) -> Tensor:
        return stored >> 4 | stored << 4 if stored.dtype == torch.uint8 else stored


def _quantizing(linear: type[QuantizedLinear]) -> Plant:
    def plant(base: Base) -> Base:
        class Platform(base):
            def ops(self, reference: OpSet) -> OpSet:
                return replace(super().ops(reference), linear=linear())

            def scheme(self, scheme: Scheme) -> Scheme | Reason:
                return served(scheme)

        return Platform

    return plant


def _in_blocks(linear: type[BufferedLinear]) -> Plant:
    return with_ops(linear=linear())


BlocksOfTheNextRow = _in_blocks(_BlocksOfTheNextRow)
BlocksOfOneRowTurned = _in_blocks(_BlocksOfOneRowTurned)
Quantizing = _quantizing(QuantizedLinear)
"""Without a mistake."""
OneScaleForAllRows = _quantizing(_OneScale)
ScalesOfTheNextRow = _quantizing(_ScalesOfTheNextRow)
NibblesSwapped = _quantizing(_NibblesSwapped)
