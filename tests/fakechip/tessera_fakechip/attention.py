"""Attention over blocks of 24 tokens, keys with their tokens last and values with their dims last, as two products want
them. Static shapes, and nothing of it is known to the host, so launches can be captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    CacheSpec,
    Device,
    FullAttentionSpec,
    HeadsLayer,
    KVLayout,
    Launch,
    LayerSpec,
    Mixer,
    Plane,
    Reason,
    persistent,
)

BLOCK = 24
ALIGNMENT = 64  # bytes, at which the chip reads a layer's part of a block


@dataclass(frozen=True)
class Plan:
    """R rows of W queries each, K keys. block, offset [T]: where each token's key and value go. tables [R, blocks].
    token [R, W]: the token at each place; row, place [T]: the way back. back [R, W, K]: how far before its query a key
    is, negative where it is none of the row's."""

    block: Tensor
    offset: Tensor
    tables: Tensor
    token: Tensor
    row: Tensor
    place: Tensor
    back: Tensor


class FakechipAttention(AttentionBackend):
    name = "fakechip"

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind != "attention" or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.sinks:
            return "no kernel for sinks"
        return None if spec.cache.dtype == spec.dtype else f"keys and values are kept in {spec.dtype} alone"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints((BLOCK,), block_multiple=False, align_bytes=ALIGNMENT)

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, FullAttentionSpec)
        heads, tokens, dims = ("head", spec.num_kv_heads), ("token", block_size), ("dim", spec.head_dim)
        return KVLayout((Plane("k", spec.dtype, (heads, dims, tokens)), Plane("v", spec.dtype, (heads, tokens, dims))))

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return Layer(spec, weights, ops)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Plan:
        size, slots, tables = (
            launch.block_sizes[group.number],
            launch.slot_mapping[group.number],
            launch.block_tables[group.number],
        )
        start, count, length = (
            each[:, None] for each in (launch.query_start_loc[:-1], launch.query_lens, launch.seq_lens)
        )  # [R, 1]
        width, at = torch.arange(launch.key.width, device=start.device), tables.device
        token = torch.where(width < count, start + width, 0)
        here = torch.arange(launch.key.tokens, device=at) - start  # [R, T]
        row = ((here >= 0) & (here < count)).to(torch.int32).argmax(0)
        place = (here.gather(0, row[None])[0]).clamp(0, launch.key.width - 1)
        key = torch.arange(tables.shape[1] * size, device=at)
        back = ((length - count + width)[:, :, None] - key).masked_fill(key >= length[:, :, None], -1)
        plan = Plan(slots // size, slots % size, tables, token, row, place, back)
        return persistent(plan, group.name, buffers)


class Layer(HeadsLayer):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Plan) -> None:
        keys, values = caches[self.spec.layer]
        keys[plan.block, :, :, plan.offset] = k
        values[plan.block, :, plan.offset] = v

    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "not among this backend's features"
        spec = self.spec
        keys, values = (cache[plan.tables].transpose(1, 2).float() for cache in caches[spec.layer])  # [R, Hk, blocks, .
        seen = plan.back >= 0 if spec.window is None else (plan.back >= 0) & (plan.back < spec.window)
        unread = ~seen.any(1)[:, None]  # [R, 1, K]: such keys and values may be anything, NaN included
        keys = keys.transpose(2, 3).flatten(3).masked_fill(unread[:, None], 0.0)  # [R, Hk, D, K]
        values = values.flatten(2, 3).masked_fill(unread[..., None], 0.0)  # [R, Hk, K, D]
        grouped = q[plan.token].float().unflatten(2, (spec.num_kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [R, Hk, G, W, D]
        scores = (grouped.flatten(2, 3) @ keys).unflatten(2, grouped.shape[2:4]) * spec.scale
        if spec.softcap is not None:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        scores = scores.masked_fill(~seen[:, None, None], torch.finfo(torch.float32).min)
        mixed: Tensor = scores.softmax(-1).flatten(2, 3) @ values
        tokens = mixed.unflatten(2, grouped.shape[2:4]).permute(0, 3, 1, 2, 4).flatten(2, 3)  # [R, W, H, D]
        result = tokens[plan.row, plan.place].to(q.dtype)
        return result if out is None else out.copy_(result)
