"""Cross attention as matrix products of torch, in float32: what a row sees is read where it was written, if its blocks
follow one another, as they mostly do, since all rows of a model take equally many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
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


@dataclass(frozen=True)
class EncodedRow:
    """A row whose encoder has positions."""

    # Its tokens in the launch.
    tokens: slice
    # Of its encoder's positions in the planes [slots, Hk, D]: as they follow one another, or [positions] int64.
    slots: slice | Tensor


@dataclass(frozen=True)
class CrossRowsPlan:
    """What a group's layers compute."""

    # [N] int64: the slots of the positions that are written.
    written: Tensor
    rows: tuple[EncodedRow, ...]
    # Whether there are tokens of no such row.
    padded: bool

    @classmethod
    def of_launch(cls, launch: Launch, group: AttentionGroup) -> CrossRowsPlan:
        size, table = launch.block_sizes[group.number], launch.block_tables[group.number]
        number = launch.num_rows
        starts, counts = (host[:number].tolist() for host in (launch.query_start_loc_host, launch.query_lens_host))
        rows, seen = [], 0
        for row, length in enumerate(launch.columns[SOURCES][:number].tolist()):
            if length and counts[row]:
                tokens = slice(starts[row], starts[row] + counts[row])
                rows.append(EncodedRow(tokens, _slots(table[row, : -(-length // size)].long(), size, length)))
                seen += counts[row]
        return cls(launch.slot_mapping[group.number].long(), tuple(rows), seen != launch.key.tokens)


def _slots(blocks: Tensor, size: int, length: int) -> slice | Tensor:
    """Of positions in blocks of that many tokens."""
    first = int(blocks[0])
    if bool((blocks == torch.arange(first, first + len(blocks))).all()):
        return slice(first * size, first * size + length)
    return (blocks[:, None] * size + torch.arange(size)).flatten()[:length]


class CrossProducts(AttentionBackend):
    name = "products-cross"

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind != "cross_attention" or not isinstance(spec.cache, CrossSpec):
            return f"no cross attention over {spec.kind}"
        kept = spec.dtype, spec.cache.dtype
        return None if kept == ("float32", "float32") else f"scores would be rounded to {spec.dtype}"

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
        for row in plan.rows:
            out[row.tokens] = self._mixed(q[row.tokens], keys[row.slots], values[row.slots])
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
