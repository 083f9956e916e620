"""Cross attention as matrix products of torch, in float32: what a row's tokens see is read where it was written, if its
blocks follow one another, as they mostly do, since all rows of a model take equally many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    FIRST_SOURCE,
    NUM_SOURCES,
    SOURCES,
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    CrossLayer,
    CrossSpec,
    Device,
    Launch,
    LayerSpec,
)

_RANGED = "ranged_cross_attention"


@dataclass(frozen=True)
class SeenSources:
    """Tokens of a row that see the same of its encoder's positions, at least one."""

    # In the launch.
    tokens: slice
    # Of the positions in the planes [slots, Hk, D]: as they follow one another, or [positions] int64.
    slots: slice | Tensor


@dataclass(frozen=True)
class CrossRowsPlan:
    """What a group's layers compute."""

    # [N] int64: the slots of the positions that are written.
    written: Tensor
    parts: tuple[SeenSources, ...]
    # Whether there are tokens of no part.
    padded: bool

    @classmethod
    def of_launch(cls, launch: Launch, group: AttentionGroup) -> CrossRowsPlan:
        size, table = launch.block_sizes[group.number], launch.block_tables[group.number]
        number = launch.num_rows
        starts, counts = (host[:number].tolist() for host in (launch.query_start_loc_host, launch.query_lens_host))
        parts, seen = [], 0
        for row, length in enumerate(launch.columns[SOURCES][:number].tolist()):
            if not length:
                continue
            slots = _slots(table[row, : -(-length // size)].long(), size, length)
            for tokens, part in _ranges(launch, group.spec.kind, starts[row], counts[row], length):
                parts.append(SeenSources(tokens, _part(slots, part)))
                seen += tokens.stop - tokens.start
        return cls(launch.slot_mapping[group.number].long(), tuple(parts), seen != launch.key.tokens)


def _ranges(launch: Launch, kind: str, start: int, count: int, length: int) -> Iterator[tuple[slice, slice]]:
    """The tokens of a row that see the same, and which of its positions that is."""
    if kind != _RANGED:
        if count:
            yield slice(start, start + count), slice(0, length)
        return
    tokens = slice(start, start + count)
    firsts, numbers = (launch.columns[name][tokens].tolist() for name in (FIRST_SOURCE, NUM_SOURCES))
    for (first, number), run in groupby(zip(firsts, numbers, strict=True)):
        end = start + len([*run])
        if number:
            yield slice(start, end), slice(first, first + number)
        start = end


def _slots(blocks: Tensor, size: int, length: int) -> slice | Tensor:
    """Of positions in blocks of that many tokens."""
    first = int(blocks[0])
    if bool((blocks == torch.arange(first, first + len(blocks))).all()):
        return slice(first * size, first * size + length)
    return (blocks[:, None] * size + torch.arange(size)).flatten()[:length]


def _part(slots: slice | Tensor, part: slice) -> slice | Tensor:
    if isinstance(slots, slice):
        return slice(slots.start + part.start, slots.start + part.stop)
    return slots[part]


class CrossProducts(AttentionBackend):
    name = "products-cross"

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind not in ("cross_attention", _RANGED) or not isinstance(spec.cache, CrossSpec):
            return f"no cross attention over {spec.kind}"
        if spec.cache.dtype != spec.dtype:
            return f"keys and values are kept in {spec.dtype}"
        # Without ranges there are kernels that read keys and values as they are kept.
        converts = spec.kind == _RANGED or spec.dtype == "float32"
        return None if converts else f"what is kept would be converted from {spec.dtype}"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1), dense_planes=True)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> CrossProductsLayer:
        return CrossProductsLayer(spec)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> CrossRowsPlan:
        return CrossRowsPlan.of_launch(launch, group)


class CrossProductsLayer(CrossLayer):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: CrossRowsPlan) -> None:
        for plane, values in zip(self._planes(caches), (k, v), strict=True):
            plane.index_copy_(0, plan.written, values)

    def attend(self, q: Tensor, caches: Caches, plan: CrossRowsPlan) -> Tensor:
        keys, values = self._planes(caches)
        out = (torch.zeros_like if plan.padded else torch.empty_like)(q, memory_format=torch.contiguous_format)
        for part in plan.parts:
            out[part.tokens] = self._mixed(*(x.float() for x in (q[part.tokens], keys[part.slots], values[part.slots])))
        return out

    def _mixed(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """q [n, H, D], keys and values [positions, Hk, D] -> [n, H, D]. The queries of a key head's group take the
        place of more tokens, since all see the same keys."""
        grouped = q.unflatten(1, (self.spec.num_kv_heads, -1)).transpose(0, 1)  # [Hk, n, G, D]
        scores = torch.bmm(grouped.flatten(1, 2) * self.spec.scale, keys.permute(1, 2, 0))
        mixed = torch.bmm(scores.softmax(-1), values.transpose(0, 1))
        return mixed.view(grouped.shape).transpose(0, 1).flatten(1, 2)

    def _planes(self, caches: Caches) -> Any:
        """Keys and values [slots, Hk, D]."""
        return (plane.flatten(0, 1) for plane in caches[self.spec.layer])
