"""Mistakes in graphs, shapes of launches, collectives and quantized weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

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
    replace,
)
from tessera.platform.collectives import Transfer
from tessera.platform.ops import HotCall
from tessera.testing.strict import BufferedLinear
from tests.platforms.faulty.making import Base, Plant, with_communicator, with_graphs

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

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        return self.right.reduce_scatter(x, dim)

    def all_to_all(self, x: Tensor) -> Tensor:
        return self.right.all_to_all(x)

    def send(self, x: Tensor, to: int) -> None:
        self.right.send(x, to)

    def recv(self, x: Tensor, source: int) -> Transfer:
        return self.right.recv(x, source)

    def close(self) -> None:
        self.right.close()


class _Averaging(_Group):
    def all_reduce(self, x: Tensor) -> Tensor:
        return super().all_reduce(x) / self.size


class _GatheringBackwards(_Group):
    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(super().all_gather(x, dim).chunk(self.size, dim)[::-1], dim)


class _OthersRounded(_Group):
    """What the others bring has fewer bits than what a rank has itself."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + (super().all_reduce(x.bfloat16()) - x.bfloat16()).to(x.dtype)


class _PartOfTheNext(_Group):
    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        return super().all_reduce(x).chunk(self.size, dim)[(self.rank + 1) % self.size]


class _NothingExchanged(_Group):
    def all_to_all(self, x: Tensor) -> Tensor:
        return x


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
PartOfTheNext = with_communicator(_PartOfTheNext)
NothingExchanged = with_communicator(_NothingExchanged)
SentAsItLies = with_communicator(_SendsAsItLies)
OneInbox = with_communicator(_OneInbox)
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
