"""Cross attention in plain torch: the reference definition. Every token of a row sees all positions of the row's
encoder, or a range of them, whose keys and values were written when the row began.

Shapes are static and there is no loop over rows, as in the attention over blocks. What is behind the last position of
an encoder is masked, so unused memory may hold anything, including NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.platform.attention import (
    FIRST_SOURCE,
    NUM_SOURCES,
    SOURCES,
    AttentionBackend,
    AttentionGroup,
    CacheConstraints,
    Caches,
    CrossLayer,
    CrossSpec,
    LayerSpec,
)
from tessera.platform.device import Device, Reason
from tessera.platform.launch import Buffers, Launch, persistent
from tessera.platform.ops import BoundOps
from tessera.reference.attention import RowGrid, read, write

RANGED = "ranged_cross_attention"


@dataclass(frozen=True)
class CrossPlan:
    """grid; block and offset [N] of each position that is written; tables [R, B]; there [R, B x block size]: which
    places of the tables hold a position; seen [R, W, B x block size]: which of them the tokens of a row see, or [R, 1,
    B x block size] if all see the same."""

    grid: RowGrid
    block: Tensor
    offset: Tensor
    tables: Tensor
    there: Tensor
    seen: Tensor

    @classmethod
    def from_launch(cls, launch: Launch, group: int, *, ranged: bool = False) -> CrossPlan:
        """group: number of the cache group. ranged: whether each token has a range of its own."""
        size, slots, tables = launch.block_sizes[group], launch.slot_mapping[group], launch.block_tables[group]
        places = torch.arange(tables.shape[1] * size, device=tables.device)
        there = places[None, :] < launch.columns[SOURCES][:, None]
        grid, seen = RowGrid.from_launch(launch), there[:, None]
        if ranged:
            first, number = (launch.columns[name][grid.token][:, :, None] for name in (FIRST_SOURCE, NUM_SOURCES))
            seen = seen & (places >= first) & (places < first + number)
        return cls(grid, slots // size, slots % size, tables, there, seen)


class ReferenceCrossAttention(AttentionBackend):
    """Any head size, any block size, grouped queries, ranges."""

    name = "reference_cross_attention"
    fallback = True

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind not in ("cross_attention", RANGED) or not isinstance(spec.cache, CrossSpec):
            return f"no cross attention over {spec.kind}"
        return None if spec.cache.dtype == spec.dtype else f"keys and values are kept in {spec.dtype}"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1))

    def bind(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> ReferenceCrossLayer:
        return ReferenceCrossLayer(spec)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> CrossPlan:
        plan = CrossPlan.from_launch(launch, group.number, ranged=group.spec.kind == RANGED)
        return persistent(plan, group.name, buffers)


class ReferenceCrossLayer(CrossLayer):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: CrossPlan) -> None:
        write(caches[self.spec.layer], plan.block, plan.offset, k, v)

    def attend(self, q: Tensor, caches: Caches, plan: CrossPlan) -> Tensor:
        there, grid = plan.there, plan.grid
        keys, values = (
            torch.where(there[:, :, None, None], x, 0.0) for x in read(caches[self.spec.layer], plan.tables)
        )
        grouped = q[grid.token].float().unflatten(2, (self.spec.num_kv_heads, -1))  # [R, W, Hk, G, D]
        scores = torch.einsum("rwhgd,rkhd->rhgwk", grouped, keys) * self.spec.scale
        scores = scores.masked_fill(~plan.seen[:, None, None], -torch.inf)
        peak = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)  # tokens that see nothing
        weights = torch.exp(scores - peak)
        total = weights.sum(-1, keepdim=True).clamp(min=1e-30)
        mixed = torch.einsum("rhgwk,rkhd->rwhgd", weights / total, values).flatten(2, 3)
        return mixed[grid.row, grid.place].to(q.dtype)
