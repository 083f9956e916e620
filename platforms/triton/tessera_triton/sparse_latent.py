"""Latent attention over selected tokens (DeepSeek-V3.2, arXiv:2512.02556): each token of a launch is a row of its own,
whose latents are those of its selection. absorbed.py attends."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tessera.platform import (
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    Device,
    Launch,
    Reason,
    SparseLatentBackend,
    SparseLatentInput,
    SparseLatentLayer,
    SparseLatentLayerSpec,
)
from tessera_triton.attention import PagedPlan
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.latent import LatentPlan, Latents, tile_of, why_not


class TritonSparseLatentAttention(SparseLatentBackend):
    """Any number of heads, of any sizes; any number of tokens."""

    name = "triton-sparse-latent"

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        self.facts, self.launch = facts, launch or Launcher()

    def supports(self, spec: SparseLatentLayerSpec) -> Reason | None:
        return why_not(spec)

    def constraints(self, spec: SparseLatentLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(64, 16), align_bytes=16, dense_planes=True)

    def bind(
        self, spec: SparseLatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> SparseLatentLayer:
        return TritonSparseLatentLayer(spec, weights, ops, self.facts, self.launch)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> LatentPlan:
        spec, number, tokens = group.spec, group.number, launch.key.tokens
        rows, lengths, ends = _of_tokens(launch, spec.limit, buffers, group.name)
        tiles = -(-spec.num_heads // tile_of(spec, self.facts, spec.num_heads).queries)
        paged = PagedPlan(
            slots=launch.slot_mapping[number], table=launch.block_tables[number], starts=rows, lengths=lengths,
            ends=ends, rows=tokens, tokens=tokens, few=tokens, few_width=1, others_start=0,
            spare=max(self.facts.processors // tiles, 1), divides=True, fills=True, padded=False,
            size=launch.block_sizes[number],
        )  # fmt: skip
        return LatentPlan(paged, rows, lengths, (), absorbs=False)


def _of_tokens(launch: Launch, limit: int, buffers: Buffers | None, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Of each token [T] int32: its row, 1, and the limit; the last two 0 for a token of no row."""
    starts = launch.query_start_loc
    token = torch.arange(launch.key.tokens, dtype=starts.dtype, device=starts.device)
    row = torch.searchsorted(starts, token, right=True, out_int32=True).sub_(1).clamp_(max=launch.key.rows - 1)
    there = token - starts.index_select(0, row) < launch.query_lens.index_select(0, row)
    lengths = there.to(torch.int32)
    of_tokens = row, lengths, lengths * limit
    if buffers is None:
        return of_tokens
    kept = (buffers.get(f"{name}_{what}", token.shape, "int32") for what in ("rows", "lengths", "ends"))
    row, lengths, ends = (one.copy_(other) for one, other in zip(kept, of_tokens, strict=True))
    return row, lengths, ends


class TritonSparseLatentLayer(SparseLatentLayer):
    def __init__(
        self,
        spec: SparseLatentLayerSpec,
        weights: Mapping[str, Tensor],
        ops: BoundOps,
        facts: DeviceFacts,
        launch: Launcher,
    ) -> None:
        super().__init__(spec, weights, ops)
        self.latents = Latents(spec, weights, facts, launch)

    def fused(self, x: SparseLatentInput, positions: Tensor, caches: Caches, plan: LatentPlan) -> Tensor:
        q = x.projected.queries.unflatten(1, (self.spec.num_heads, self.spec.query_dim))
        self.latents.put(q, x.projected.latent, positions, caches, plan)
        return self.latents.over(q, caches, plan, None, x.selection).flatten(1)

    def write(self, latent: Tensor, caches: Caches, plan: LatentPlan) -> None:
        self.latents.put(None, latent, plan.paged.slots, caches, plan)

    def attend(
        self, q: Tensor, selection: Tensor, caches: Caches, plan: LatentPlan, out: Tensor | None = None
    ) -> Tensor:
        return self.latents.over(q, caches, plan, out, selection)
