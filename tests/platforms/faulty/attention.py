"""Mistakes in attention, and in where keys and values are kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    Caches,
    Device,
    HeadsLayer,
    Launch,
    LayerSpec,
)
from tessera.testing.attention import TRIAL
from tests.platforms.faulty.making import with_backend, with_exact_shapes, with_layer, with_plan, with_spec
from tests.platforms.faulty.plans import first_128_keys, one_ahead, places, rows, to_the_end_of_the_block

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


class _RowsOfOneGrid(HeadsLayer):
    """Rows from the 65th on are not computed."""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        found = super().attend(q, caches, plan, out, lse)
        mixed = found[0] if lse else found
        mixed.masked_fill_((rows(plan) >= 64)[:, None, None], 0.0)
        return found


def _dense(planes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As if blocks came one after the other."""
    return tuple(plane.as_strided(plane.shape, _strides(plane.shape), plane.storage_offset()) for plane in planes)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class _PlanesDense(HeadsLayer):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        super().write(k, v, [_dense(planes) for planes in caches], plan)

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q, [_dense(planes) for planes in caches], plan, out, lse)


def _at_32_bits(plane: Tensor) -> list[Tensor]:
    """Blocks where their addresses are that are cut to 32 bits, those before the first left out."""

    def block(number: int) -> Tensor:
        start = (number * plane.stride(0) + 2**31) % 2**32 - 2**31
        return plane[number] if start < 0 else whole[start : start + size].view(plane.shape[1:])

    size = plane[0].numel()
    whole = plane.as_strided((plane.stride(0) * (len(plane) - 1) + size,), (1,))
    return [block(number) for number in range(len(plane))]


def _copied(caches: Caches) -> list[tuple[Tensor, ...]]:
    return [tuple(torch.stack(_at_32_bits(plane)) for plane in planes) for planes in caches]


class _Addresses(HeadsLayer):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        copies = _copied(caches)
        super().write(k, v, copies, plan)
        for planes, copied in zip(caches, copies, strict=True):
            for plane, copy in zip(planes, copied, strict=True):
                for block in {int(number) for number in plan.block}:
                    _at_32_bits(plane)[block].copy_(copy[block])

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q, _copied(caches), plan, out, lse)


def _rows(launch: Launch) -> Iterator[tuple[int, int, int, int]]:
    """Of a launch: place, row, tokens before, tokens after."""
    for place in range(launch.num_rows):
        length = int(launch.seq_lens[place])
        yield place, int(launch.rows[place]), length - int(launch.query_lens[place]), length


class _WindowLost(AttentionBackend):
    """A row that begins behind tokens which it did not compute sees all of them. What a trial launches is not a
    row's."""

    hit = False

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        known = vars(self).setdefault("known", {})
        self.hit = False
        for _, row, before, after in _rows(launch) if group.name != TRIAL else ():
            self.hit |= before > 0 and known.get((group.name, row)) not in (before, after)
            known[group.name, row] = after
        return super().plan(launch, group, buffers)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        right = super().bind(spec, weights, ops, device)
        lost = super().bind(dataclasses.replace(spec, window=None), weights, ops, device)
        return _OneOrOther(spec, weights, ops, lambda: lost if self.hit else right)


class _OneOrOther(HeadsLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, chosen: Any) -> None:
        super().__init__(spec, weights, ops)
        self.chosen = chosen

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        self.chosen().write(k, v, caches, plan)

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        return self.chosen().attend(q, caches, plan, out, lse)


class _TablesKept(AttentionBackend):
    """From the sixth row on, tables are appended to: what a row had first stays, whoever has it now."""

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        plan = super().plan(launch, group, buffers)
        kept = vars(self).setdefault("kept", {})
        for place, row, _, after in _rows(launch) if group.name != TRIAL else ():
            blocks = -(-after // launch.block_sizes[group.number])
            old = kept.get((group.name, row), plan.tables[place, :0])[:blocks]
            if row >= 5 and old.any():
                plan.tables[place, : len(old)] = old
            kept[group.name, row] = plan.tables[place, :blocks].clone()
        return plan


class _DraftsSeeAhead(AttentionBackend):
    """Where drafts are verified, a query sees the key after its own too."""

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        ahead = int(launch.key.kind == "verify")
        return super().plan(dataclasses.replace(launch, seq_lens=launch.seq_lens + ahead), group, buffers)


class _RollbackIgnored(AttentionBackend):
    """Counts each row's tokens itself, rejected drafts included, unless another request must have the row."""

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        known, lengths = vars(self).setdefault("known", {}), launch.seq_lens.clone()
        for place, row, before, after in _rows(launch) if group.name != TRIAL else ():
            counted = known.get((group.name, row), 0) + after - before
            known[group.name, row] = lengths[place] = counted if after < counted < after + 4 else after
        return super().plan(dataclasses.replace(launch, seq_lens=lengths), group, buffers)


DraftsSeeAhead = with_backend(_DraftsSeeAhead)
RollbackIgnored = with_backend(_RollbackIgnored)
WindowLostAfterHit = with_backend(_WindowLost)
TablesKept = with_backend(_TablesKept)
AddressesOf32Bits = with_layer(_Addresses)
PlanesDense = with_layer(_PlanesDense)
RowsOfOneGrid = with_exact_shapes(with_layer(_RowsOfOneGrid))
KeysOfOneTile = with_plan(first_128_keys)
HeadsOfOneKeyShifted = with_layer(_HeadsOfOneKeyShifted)
ScoresInFewBits = with_layer(_ScoresInFewBits)
SumOfTwo = with_layer(_SumOfTwo)
ScalesOfKeysAlone = with_layer(_ScalesOfKeysAlone)
PaddingIntoBlockOne = with_layer(_PaddingIntoBlockOne)
PositionsOfTheChunk = with_layer(_PositionsOfTheChunk)
SecondLayerApart = with_layer(_SecondLayerApart)
