"""Mistakes in attention, and in where keys and values are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.platform import Caches
from tessera.reference.attention import PagedPlan
from tessera.testing.strict.attention import PoisonedNull
from tests.platforms.faulty.making import with_layer, with_plan, with_spec

ScaleOfDim = with_spec(lambda spec: {"scale": 1 / spec.head_dim})
WindowIgnored = with_spec(lambda spec: {"window": None})
WindowTooLong = with_spec(lambda spec: {"window": spec.window and spec.window + 1})
SoftCapIgnored = with_spec(lambda spec: {"softcap": None})
SeesAhead = with_plan(lambda plan, caches: {"query": plan.query + 1})


def _to_the_end_of_the_block(plan: PagedPlan, caches: Caches) -> Mapping[str, Any]:
    size = caches[0][0].shape[1]
    blocks = plan.filled.unflatten(-1, (-1, size))
    return {"filled": blocks.any(-1, keepdim=True).expand_as(blocks).flatten(-2)}


StaleSlotsRead = with_plan(_to_the_end_of_the_block)


class _EdgeInBlockBefore(PoisonedNull):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: PagedPlan) -> None:
        edge = (plan.offset == 0) & (plan.block > 0)
        super().write(k, v, caches, dataclasses.replace(plan, block=plan.block - edge.int()))


class _HeadsInTurn(PoisonedNull):
    """Key head = head % key heads."""

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        heads, key_heads = self.spec.num_heads, self.spec.num_kv_heads
        order = torch.tensor(sorted(range(heads), key=lambda head: (head % key_heads, head)))
        mixed = super().attend(q[:, order], caches, plan)[:, order.argsort()]
        return mixed if out is None else out.copy_(mixed)


class _PlanesSwapped(PoisonedNull):
    """Consistent in itself, but not what the layout says."""

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: PagedPlan) -> None:
        super().write(v, k, caches, plan)

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q, [(v, k) for k, v in caches], plan, out, lse)


BlockWrongAtEdge = with_layer(_EdgeInBlockBefore)
HeadsInTurn = with_layer(_HeadsInTurn)
PlanesSwapped = with_layer(_PlanesSwapped)


class _HeadsOfOneKeyShifted(PoisonedNull):
    """Right for groups, off by one where all heads share a key head."""

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        mixed = super().attend(q, caches, plan)
        mixed = mixed.roll(1, dims=1) if self.spec.num_kv_heads == 1 else mixed
        return mixed if out is None else out.copy_(mixed)


class _ScoresInFewBits(PoisonedNull):
    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q.bfloat16().to(q.dtype), caches, plan, out, lse)


class _SumOfTwo(PoisonedNull):
    """The log is to base 2."""

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        found = super().attend(q, caches, plan, out, lse)
        return (found[0], found[1] / torch.log(torch.tensor(2.0))) if lse else found


class _PaddingIntoBlockOne(PoisonedNull):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: PagedPlan) -> None:
        super().write(k, v, caches, dataclasses.replace(plan, block=plan.block.clamp(min=1)))


class _PositionsOfTheChunk(PoisonedNull):
    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        return super().fused(x, plan.grid.place, caches, plan)


class _SecondLayerApart(PoisonedNull):
    """Keeps what it has in memory of its own, which whoever copies blocks does not know."""

    own: tuple[Tensor, ...] | None = None

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        if self.spec.layer == 1:
            self.own = self.own or tuple(cache.clone() for cache in caches[1])
            caches = [(), self.own]
        return super().fused(x, positions, caches, plan)


HeadsOfOneKeyShifted = with_layer(_HeadsOfOneKeyShifted)
ScoresInFewBits = with_layer(_ScoresInFewBits)
SumOfTwo = with_layer(_SumOfTwo)
PaddingIntoBlockOne = with_layer(_PaddingIntoBlockOne)
PositionsOfTheChunk = with_layer(_PositionsOfTheChunk)
SecondLayerApart = with_layer(_SecondLayerApart)
