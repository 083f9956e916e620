"""Latent attention (MLA, DeepSeek-V2, arXiv:2405.04434) over a paged cache: which layers it takes, what a launch needs,
and the bound layer. absorbed.py attends, latent_cache.py writes the cache."""

from __future__ import annotations

from collections.abc import Mapping
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    Device,
    LatentBackend,
    LatentHeadsSpec,
    LatentInput,
    LatentLayer,
    LatentLayerSpec,
    Launch,
    Reason,
)
from tessera_triton.absorbed import absorbed_rows, absorbed_tiles
from tessera_triton.attention import PagedPlan, paged_plan
from tessera_triton.decode import combine_parts
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.latent_cache import latent_input
from tessera_triton.tiles import LatentTile, latent_tile

_DTYPES = ("bfloat16", "float16", "float32")
_WIDEST = 512, 64  # the largest parts of a latent
_FEW = 8  # tokens of a row that absorbed_rows takes
_AT_ONCE = 2048  # elements of latents that a program writes


class TritonLatentAttention(LatentBackend):
    """Any number of heads, of any sizes."""

    name = "triton-latent"

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        self.facts, self.launch = facts, launch or Launcher()

    def supports(self, spec: LatentLayerSpec) -> Reason | None:
        return why_not(spec)

    def constraints(self, spec: LatentLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(64, 16), align_bytes=16, dense_planes=True)

    def bind(self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> LatentLayer:
        return TritonLatentLayer(spec, weights, ops, self.facts, self.launch)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        spec = group.spec
        width = launch.key.width if launch.key.width <= _FEW else 1
        tile = tile_of(spec, self.facts, width)
        spare = max(self.facts.processors // -(-spec.num_heads * width // tile.queries), 1)
        return paged_plan(launch, group.number, buffers, _FEW, spare, None)


def why_not(spec: LatentHeadsSpec) -> Reason | None:
    """Why the kernels cannot run a layer."""
    cache, (rank, rope) = spec.cache, _WIDEST
    if spec.dtype not in _DTYPES:
        return f"no kernels for {spec.dtype}"
    if cache.dtype != spec.dtype:
        return f"latents in {cache.dtype}"
    if cache.rank > rank or cache.rope_dim > rope:
        return f"latents of {cache.rank} + {cache.rope_dim}, more than {rank} + {rope}"
    return None


def tile_of(spec: LatentHeadsSpec, facts: DeviceFacts, queries: int) -> LatentTile:
    """For rows of so many queries."""
    return latent_tile(facts, spec.dtype, blocks_of(spec), queries * spec.num_heads)


def blocks_of(spec: LatentHeadsSpec) -> tuple[int, int]:
    """The two parts of a latent, as matrix instructions take them."""
    return max(power_of_two(spec.cache.rank), 16), max(power_of_two(spec.cache.rope_dim), 16)


class Latents:
    """The launches of a layer. Latents are in a dense plane [blocks, token, rank + rope_dim]."""

    def __init__(
        self, spec: LatentHeadsSpec, weights: Mapping[str, Tensor], facts: DeviceFacts, launch: Launcher
    ) -> None:
        self.spec, self.weights, self.facts, self.launch = spec, weights, facts, launch

    def put(self, q: Tensor | None, latent: Tensor, positions: Tensor, caches: Caches, plan: PagedPlan) -> None:
        """Norms and turns latents [T, rank + rope_dim] into their slots, and turns the last part of q [T, H,
        query_dim] in place; without q, only stores them."""
        spec, (plane,) = self.spec, caches[self.spec.layer]
        latent = latent if latent.stride(-1) == 1 else latent.contiguous()
        rotary = None if q is None else spec.rotary
        table = latent if rotary is None else self.weights["cos_sin"]
        turned = latent if q is None else q[..., spec.nope_dim :]
        rank, rope = blocks_of(spec)
        turns, tokens, together = 0 if rotary is None else rotary.dim, len(latent), max(_AT_ONCE // rank, 1)
        if tokens:
            self.launch(
                latent_input, (-(-tokens // together) + (tokens if turns else 0),),
                turned, turned.stride(0), 1 if q is None else turned.stride(1), latent, latent.stride(0), positions,
                table, table.stride(0), self.weights["latent_norm"], spec.latent_norm.eps, spec.latent_norm.offset,
                plan.slots, plane, plane.stride(0), tokens,
                HEADS=spec.num_heads, RANK=spec.cache.rank, ROPE=spec.cache.rope_dim, SIZE=plan.size, ROTARY=turns,
                PAIRS=rotary is not None and rotary.style == "pairs", NORMED=q is not None,
                BLOCK_T=together, BLOCK_H=power_of_two(spec.num_heads), BLOCK_R=rank, BLOCK_P=rope,
                BLOCK_A=power_of_two(turns // 2), num_warps=4,
            )  # fmt: skip

    def over(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None) -> Tensor:
        """q [T, H, query_dim], turned -> [T, H, value_dim]"""
        spec, tokens = self.spec, len(q)
        key_up, value_up = self.weights["kv_up"].split((spec.nope_dim, spec.value_dim), dim=1)
        absorbed = q.new_empty(tokens, spec.num_heads, spec.cache.rank)
        torch.bmm(q[..., : spec.nope_dim].transpose(0, 1), key_up, out=absorbed.transpose(0, 1))
        mixed = torch.zeros_like(absorbed) if plan.padded else torch.empty_like(absorbed)
        turned = q[..., spec.nope_dim :]
        turned = turned if turned.stride(-1) == 1 else turned.contiguous()
        if plan.few and plan.tokens:
            self._rows(absorbed, turned, caches, plan, mixed)
        if plan.others_start < plan.tokens and plan.few < plan.rows:
            self._tiles(absorbed, turned, caches, plan, mixed)
        made = q.new_empty(tokens, spec.num_heads, spec.value_dim) if out is None else out
        torch.bmm(mixed.transpose(0, 1), value_up.transpose(1, 2), out=made.transpose(0, 1))
        return made

    def _operands(
        self, absorbed: Tensor, turned: Tensor, caches: Caches, plan: PagedPlan, mixed: Tensor
    ) -> tuple[Any, ...]:
        (plane,) = caches[self.spec.layer]
        return (
            absorbed, absorbed.stride(0), absorbed.stride(1), turned, turned.stride(0), turned.stride(1),
            plane, plane.stride(0), plan.table, plan.table.stride(0), plan.starts, plan.lengths, plan.ends,
            mixed, mixed.stride(0), mixed.stride(1), self.spec.scale * log2(e),
        )  # fmt: skip

    def _constants(self, tile: LatentTile, plan: PagedPlan) -> dict[str, Any]:
        spec, (rank, rope) = self.spec, blocks_of(self.spec)
        return {
            "HEADS": spec.num_heads, "RANK": spec.cache.rank, "ROPE": spec.cache.rope_dim, "SIZE": plan.size,
            "BLOCK_M": tile.queries, "BLOCK_N": tile.latents, "BLOCK_R": rank, "BLOCK_P": rope, "PIECE": tile.piece,
            "num_warps": tile.warps, "num_stages": tile.stages,
        }  # fmt: skip

    def _rows(self, absorbed: Tensor, turned: Tensor, caches: Caches, plan: PagedPlan, mixed: Tensor) -> None:
        spec, spare, width = self.spec, plan.spare, plan.few_width
        tile = tile_of(spec, self.facts, width)
        # All divided rows together have no more parts than there are spare programs.
        shape = spare * width if plan.divides else 0, spec.num_heads
        parts = torch.empty(*shape, spec.cache.rank, dtype=torch.float32, device=absorbed.device)
        logs = torch.empty(shape, dtype=torch.float32, device=absorbed.device)
        counts = (plan.few, spare, width, int(plan.fills))
        self.launch(
            absorbed_rows, (plan.few + spare, -(-spec.num_heads * width // tile.queries)),
            *self._operands(absorbed, turned, caches, plan, mixed), parts, logs, *counts, **self._constants(tile, plan),
        )  # fmt: skip
        if plan.divides:
            rank, _ = blocks_of(spec)
            self.launch(
                combine_parts, (min(plan.few, max(spare // 2, 1)) * width, spec.num_heads),
                parts, logs, plan.starts, plan.lengths, plan.ends, mixed, mixed.stride(0), mixed.stride(1), logs,
                *counts,
                HEADS=spec.num_heads, DIM=spec.cache.rank, WINDOW=0, SUMS=False, BLOCK_N=tile.latents, BLOCK_D=rank,
                num_warps=16 if rank > 256 else 8,
            )  # fmt: skip

    def _tiles(self, absorbed: Tensor, turned: Tensor, caches: Caches, plan: PagedPlan, mixed: Tensor) -> None:
        heads = self.spec.num_heads
        tile = tile_of(self.spec, self.facts, plan.tokens - plan.others_start)
        before = plan.others_start * heads // tile.queries
        self.launch(
            absorbed_tiles, ((plan.tokens * heads - 1) // tile.queries - before + plan.rows - plan.few,),
            *self._operands(absorbed, turned, caches, plan, mixed), plan.few, plan.rows, **self._constants(tile, plan),
        )  # fmt: skip


class TritonLatentLayer(LatentLayer):
    def __init__(
        self,
        spec: LatentLayerSpec,
        weights: Mapping[str, Tensor],
        ops: BoundOps,
        facts: DeviceFacts,
        launch: Launcher,
    ) -> None:
        super().__init__(spec, weights, ops)
        self.latents = Latents(spec, weights, facts, launch)

    def fused(self, x: LatentInput, positions: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        q = x.queries.unflatten(1, (self.spec.num_heads, self.spec.query_dim))
        self.latents.put(q, x.latent, positions, caches, plan)
        return self.latents.over(q, caches, plan, None).flatten(1)

    def write(self, latent: Tensor, caches: Caches, plan: PagedPlan) -> None:
        self.latents.put(None, latent, plan.slots, caches, plan)

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None) -> Tensor:
        return self.latents.over(q, caches, plan, out)
