"""Paged attention in plain torch: the reference definition of what a backend computes.

Shapes are static and there is no loop over rows: queries are laid out as [rows, widest row], keys and values gathered
as [rows, blocks x block size]. Everything outside a row's own tokens, or behind the window of its first query, is
masked, so unused memory may hold anything, including NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.ops.quantize import QuantizeSpec, quantize
from tessera.platform.attention import (
    AHEAD,
    AttentionBackend,
    AttentionGroup,
    CacheConstraints,
    Caches,
    FullAttentionSpec,
    HeadsLayer,
    LayerSpec,
)
from tessera.platform.device import Device, Reason
from tessera.platform.launch import Buffers, Launch, persistent
from tessera.platform.ops import BoundOps
from tessera.platform.quantization import KV_FP8, KV_INT8, ActSpec

_BY_ROW = ActSpec(KV_INT8.dtype, granularity="token")


@dataclass(frozen=True)
class RowGrid:
    """Tokens of a launch laid out by row."""

    token: Tensor  # [R, W] int64: the token at a place in a row
    valid: Tensor  # [R, W]: whether there is one
    row: Tensor  # [T]: the row of each token
    place: Tensor  # [T]: its place there

    @classmethod
    def from_launch(cls, launch: Launch) -> RowGrid:
        start, at = launch.query_start_loc[:-1], launch.query_start_loc.device
        place = torch.arange(launch.key.width, device=at)[None, :]
        valid = place < launch.query_lens[:, None]
        token = torch.where(valid, start[:, None] + place, 0).long()
        tokens = torch.arange(launch.key.tokens, device=at)[:, None]
        inside = (tokens >= start[None, :]) & (tokens < (start + launch.query_lens)[None, :])
        row = inside.to(torch.int32).argmax(-1)
        offset = (tokens[:, 0] - start[row]).clamp(0, launch.key.width - 1)
        return cls(token, valid, row, offset.long())


@dataclass(frozen=True)
class PagedPlan:
    """grid; block and offset [T] of each token's slot; tables [R, B]; positions of query and of the last key that it
    may see [R, W, 1], and of key [1, 1, B x block size]; filled: which keys exist."""

    grid: RowGrid
    block: Tensor
    offset: Tensor
    tables: Tensor
    query: Tensor
    last: Tensor
    key: Tensor
    filled: Tensor

    @classmethod
    def from_launch(cls, launch: Launch, group: int) -> PagedPlan:
        """group: number of the cache group."""
        size, slots, tables = launch.block_sizes[group], launch.slot_mapping[group], launch.block_tables[group]
        at = tables.device
        first = (launch.seq_lens - launch.query_lens)[:, None, None]
        query = first + torch.arange(launch.key.width, device=at)[None, :, None]
        key = torch.arange(tables.shape[1] * size, device=at)[None, None, :]
        filled = key < launch.seq_lens[:, None, None]
        grid, last = RowGrid.from_launch(launch), query
        if AHEAD in launch.columns:
            last = query + launch.columns[AHEAD][grid.token][:, :, None]
        return cls(grid, slots // size, slots % size, tables, query, last, key, filled)


KINDS = "attention", "alibi_attention", "relative_attention", "chunked_attention", "lookahead_attention"
"""Of layers that keep the keys and values of each token."""


class ReferenceAttention(AttentionBackend):
    """Any head size, any block size, grouped queries, windows, chunks, looks ahead, soft caps, sinks, linear biases,
    a bias by distance."""

    name = "reference"
    fallback = True

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind not in KINDS or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        return why_not_kept(spec, spec.cache)

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        assert isinstance(spec.cache, FullAttentionSpec)
        return CacheConstraints(
            block_sizes=(16, 1),
            align_bytes=align_bytes(spec.cache),
            returns_lse=True,
        )

    def bind(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> ReferenceAttentionLayer:
        return ReferenceAttentionLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return persistent(PagedPlan.from_launch(launch, group.number), group.name, buffers)


class ReferenceAttentionLayer(HeadsLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        super().__init__(spec, weights, ops)
        self.slopes: Tensor | None = None  # [Hk, G, 1, 1] float32
        if spec.slopes:
            slopes = torch.tensor(spec.slopes, device=ops.device.target)
            self.slopes = slopes.view(spec.num_kv_heads, -1, 1, 1)

    @property
    def scales(self) -> Sequence[Tensor]:
        """Those of keys and of values [1], if they are weights of the layer."""
        in_weights = getattr(self.spec.cache, "quant", None) == KV_FP8
        return (self.weights["k_scale"], self.weights["v_scale"]) if in_weights else ()

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: PagedPlan) -> None:
        write(caches[self.spec.layer], plan.block, plan.offset, k, v, self.scales)

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        spec = self.spec
        keys, values = read(caches[spec.layer], plan.tables, self.scales)  # [R, K, Hk, D]
        last = plan.last if spec.kind == "lookahead_attention" else plan.query
        seen, there = plan.filled & (plan.key <= last), plan.filled[:, 0]  # [R, W, K], [R, K]
        if spec.window is not None:
            seen = seen & (plan.key > plan.query - spec.window)
            there = there & (plan.key[:, 0] > plan.query[:, 0] - spec.window)
        if spec.chunk is not None:
            key, query = plan.key // spec.chunk, plan.query // spec.chunk
            seen, there = seen & (key == query), there & (key[:, 0] >= query[:, 0])
        there = there[:, :, None, None]
        keys, values = (torch.where(there, x, 0.0) for x in (keys, values))
        grouped = q[plan.grid.token].float().unflatten(2, (spec.num_kv_heads, -1))  # [R, W, Hk, G, D]
        scores = torch.einsum("rwhgd,rkhd->rhgwk", grouped, keys) * spec.scale
        if spec.softcap is not None:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        if self.slopes is not None:
            scores = scores + self.slopes * (plan.key - plan.query)[:, None, None]
        if spec.relative_reach:
            scores = scores + self._relative_bias(plan.key - plan.query)
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        peak = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)  # rows that attend to nothing
        if spec.sinks:
            sinks = self.weights["sinks"].float().view(spec.num_kv_heads, -1, 1, 1)
            peak = torch.maximum(peak, sinks)
        weights = torch.exp(scores - peak)
        total = weights.sum(-1, keepdim=True)
        if spec.sinks:
            total = total + torch.exp(sinks - peak)
        mixed = torch.einsum("rhgwk,rkhd->rwhgd", weights / total.clamp(min=1e-30), values).flatten(2, 3)
        result = mixed[plan.grid.row, plan.grid.place].to(q.dtype)
        if out is not None:
            result = out.copy_(result)
        if not lse:
            return result
        sums = (peak + torch.log(total)).squeeze(-1).permute(0, 3, 1, 2).flatten(2)
        return result, sums[plan.grid.row, plan.grid.place]

    def _relative_bias(self, distance: Tensor) -> Tensor:
        """distance [R, W, K]: key - query -> [R, Hk, G, W, K] float32."""
        last = self.spec.relative_reach - 1
        bias = self.weights["relative_bias"].float().T[distance.clamp(-last, 0) + last]  # [R, W, K, H]
        return bias.permute(0, 3, 1, 2).unflatten(1, (self.spec.num_kv_heads, -1))


# ---- keys and values in a block: unquantized, int8 with a scale per token and head, or fp8 with a scale per layer


def why_not_kept(spec: LayerSpec, cache: FullAttentionSpec) -> Reason | None:
    """Why there is no reference for a layer's cache, or None if there is one."""
    if cache.quant is None and cache.dtype == spec.dtype:
        return None
    if cache.quant in (KV_INT8, KV_FP8) and cache.dtype == cache.quant.dtype:
        return None
    return (
        f"keys and values are kept in {spec.dtype}, in int8 with one scale per token and head, or in "
        f"{KV_FP8.dtype} with one scale per layer"
    )


def align_bytes(spec: FullAttentionSpec) -> int:
    return 4 if spec.quant == KV_INT8 else 1


def write(
    planes: Sequence[Tensor], block: Tensor, offset: Tensor, k: Tensor, v: Tensor, scales: Sequence[Tensor] = ()
) -> None:
    """Writes k, v [T, Hk, D] at places block and offset [T]. scales: of keys and of values, if they are not planes."""
    kept = [k, v]
    if scales:
        kept = [_saturated(x.float() / scale, plane) for x, scale, plane in zip(kept, scales, planes, strict=True)]
    elif len(planes) > len(kept):
        rounded = [_rounded(x) for x in kept]
        kept = [scale for _, scale in rounded] + [data for data, _ in rounded]
    for plane, values in zip(planes, kept, strict=True):
        plane.index_put_((block, offset), values)


def _saturated(x: Tensor, plane: Tensor) -> Tensor:
    """x in the dtype of a plane, in which larger numbers would become NaN."""
    limit = torch.finfo(plane.dtype).max
    return x.clamp(-limit, limit).to(plane.dtype)


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """[T, H, D] -> int8 [T, H, D], float32 [T, H]."""
    rows = quantize(QuantizeSpec(x.shape[-1], "float32", _BY_ROW), x.flatten(0, 1))
    return rows.data.view(x.shape), rows.scale.view(x.shape[:-1])


def read(planes: Sequence[Tensor], tables: Tensor, scales: Sequence[Tensor] = ()) -> Iterator[Tensor]:
    """Yields the keys, then the values, of the tables' blocks [R, B]: [R, B x block size, Hk, D] float32. scales: as in
    write()."""
    *of_heads, k, v = (plane[tables].flatten(1, 2).float() for plane in planes)
    factors = [scale.unsqueeze(-1) for scale in of_heads] or scales
    for number, values in enumerate((k, v)):
        yield values * factors[number] if factors else values
