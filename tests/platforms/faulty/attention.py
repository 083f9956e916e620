"""Mistakes in attention, and in where keys and values are kept."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from tessera.platform import Caches, HeadsLayer
from tests.platforms.faulty.making import with_layer, with_plan, with_spec
from tests.platforms.faulty.plans import one_ahead, places, to_the_end_of_the_block

ScaleOfDim = with_spec(lambda spec: {"scale": 1 / spec.head_dim})
WindowIgnored = with_spec(lambda spec: {"window": None})
WindowTooLong = with_spec(lambda spec: {"window": spec.window and spec.window + 1})
SoftCapIgnored = with_spec(lambda spec: {"softcap": None})
SeesAhead = with_plan(one_ahead)
StaleSlotsRead = with_plan(to_the_end_of_the_block)


class _EdgeInBlockBefore(HeadsLayer):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        edge = (plan.offset == 0) & (plan.block > 0)
        super().write(k, v, caches, dataclasses.replace(plan, block=plan.block - edge.int()))


class _HeadsInTurn(HeadsLayer):
    """Key head = head % key heads."""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        heads, key_heads = self.spec.num_heads, self.spec.num_kv_heads
        order = torch.arange(heads, device=q.device).unflatten(0, (-1, key_heads)).T.flatten()
        mixed = super().attend(q[:, order], caches, plan)[:, order.argsort()]
        return mixed if out is None else out.copy_(mixed)


def _swapped(*planes: Tensor) -> tuple[Tensor, ...]:
    """Scales, where there are some, and numbers; a plane turned where the other's dims lie in another order."""
    *scales, k, v = planes
    return (*scales[::-1], v, k) if k.shape == v.shape else (*scales[::-1], v.mT, k.mT)


class _PlanesSwapped(HeadsLayer):
    """Consistent in itself, but not what the layout says."""

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        super().write(k, v, [_swapped(*planes) for planes in caches], plan)

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q, [_swapped(*planes) for planes in caches], plan, out, lse)


BlockWrongAtEdge = with_layer(_EdgeInBlockBefore)
HeadsInTurn = with_layer(_HeadsInTurn)
PlanesSwapped = with_layer(_PlanesSwapped)


class _HeadsOfOneKeyShifted(HeadsLayer):
    """Right for groups, off by one where all heads share a key head."""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        mixed = super().attend(q, caches, plan)
        mixed = mixed.roll(1, dims=1) if self.spec.num_kv_heads == 1 else mixed
        return mixed if out is None else out.copy_(mixed)


class _ScoresInFewBits(HeadsLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q.bfloat16().to(q.dtype), caches, plan, out, lse)


class _SumOfTwo(HeadsLayer):
    """The log is to base 2."""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        found = super().attend(q, caches, plan, out, lse)
        return (found[0], found[1] / math.log(2)) if lse else found


class _ScalesOfKeysAlone(HeadsLayer):
    """Values times the scales of keys."""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        planes = caches[self.spec.layer]
        if len(planes) == 4:
            caches = [(planes[0], planes[0], *planes[2:])]
        return super().attend(q, caches, plan, out, lse)


class _PaddingIntoBlockOne(HeadsLayer):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        super().write(k, v, caches, dataclasses.replace(plan, block=plan.block.clamp(min=1)))


class _PositionsOfTheChunk(HeadsLayer):
    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Any) -> Tensor:
        return super().fused(x, places(plan), caches, plan)


class _SecondLayerApart(HeadsLayer):
    """Keeps what it has in memory of its own, which whoever copies blocks does not know."""

    own: tuple[Tensor, ...] | None = None

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Any) -> Tensor:
        if self.spec.layer == 1:
            self.own = self.own or tuple(cache.clone() for cache in caches[1])
            caches = [(), self.own]
        return super().fused(x, positions, caches, plan)


HeadsOfOneKeyShifted = with_layer(_HeadsOfOneKeyShifted)
ScoresInFewBits = with_layer(_ScoresInFewBits)
SumOfTwo = with_layer(_SumOfTwo)
ScalesOfKeysAlone = with_layer(_ScalesOfKeysAlone)
PaddingIntoBlockOne = with_layer(_PaddingIntoBlockOne)
PositionsOfTheChunk = with_layer(_PositionsOfTheChunk)
SecondLayerApart = with_layer(_SecondLayerApart)
