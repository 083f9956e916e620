"""Attention on torch's scaled_dot_product_attention, with a soft cap on its products: rows that decode in one batch,
rows that prefill one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    AttentionBackend,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    CacheSpec,
    Device,
    HeadsLayer,
    KVLayout,
    Launch,
    LayerSpec,
    Paged,
    Plane,
)


@dataclass(frozen=True)
class Decode:
    """Rows of one token each: their tokens in the launch (a slice, or [rows] where there are gaps), where each key is
    ([rows, keys]; past a row's end its first key again, so that nothing foreign is read), which of them count [rows, 1,
    1, keys], and how far back each is [rows, 1, 1, keys]."""

    tokens: slice | Tensor
    block: Tensor
    offset: Tensor
    seen: Tensor
    back: Tensor


@dataclass(frozen=True)
class Prefill:
    """One row: its tokens in the launch, its blocks, its keys, how far back each key is from each query [queries, keys]
    (negative: ahead)."""

    first: int
    last: int
    blocks: Tensor
    keys: int
    back: Tensor


@dataclass(frozen=True)
class SdpaPlan:
    block: Tensor
    offset: Tensor
    decode: Decode | None
    prefill: tuple[Prefill, ...]


class SdpaAttention(AttentionBackend):
    name = "sdpa"

    def supports(self, spec: LayerSpec) -> str | None:
        return None if spec.kind == "attention" and isinstance(spec.cache, Paged) else f"no attention over {spec.kind}"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1), host_lengths="exact")

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, Paged)
        axes = (("token", block_size), ("head", spec.num_kv_heads), ("dim", spec.head_dim))
        return KVLayout((Plane("k", spec.dtype, axes), Plane("v", spec.dtype, axes)))

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> SdpaLayer:
        return SdpaLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: int, buffers: Buffers | None) -> SdpaPlan:
        size, table = launch.block_sizes[group], launch.block_tables[group]
        lengths, starts = launch.q_len_host[: launch.num_rows], launch.q_start[: launch.num_rows].tolist()
        decoding = 0
        while decoding < len(lengths) and lengths[decoding] == 1:
            decoding += 1
        keys = launch.kv_len_host.tolist()
        prefill = tuple(
            _prefill(starts[row], int(lengths[row]), keys[row], table[row, : -(-keys[row] // size)])
            for row in range(decoding, len(lengths))
        )
        decode = (
            _decode(_tokens(starts[:decoding]), launch.kv_len[:decoding], max(keys[:decoding]), table[:decoding], size)
            if decoding
            else None
        )
        slots = launch.slots[group]
        return SdpaPlan(slots // size, slots % size, decode, prefill)


def _tokens(starts: list[int]) -> slice | Tensor:
    return slice(0, len(starts)) if starts[-1] == len(starts) - 1 else torch.tensor(starts)


def _decode(tokens: slice | Tensor, kv_len: Tensor, widest: int, table: Tensor, size: int) -> Decode:
    key = torch.arange(widest)[None, :]
    seen = key < kv_len[:, None]
    at = torch.where(seen, key, 0)
    block = table.gather(1, at // size)
    back = kv_len[:, None] - 1 - key
    return Decode(tokens, block, at % size, seen[:, None, None, :], back[:, None, None, :])


def _prefill(first: int, length: int, keys: int, blocks: Tensor) -> Prefill:
    query = torch.arange(keys - length, keys)
    return Prefill(first, first + length, blocks, keys, query[:, None] - torch.arange(keys)[None, :])


def _mix(spec: LayerSpec) -> Callable[..., Tensor]:
    """(q, k, v, attn_mask=) -> mixed, as scaled_dot_product_attention has it."""
    if spec.softcap is None:
        return partial(F.scaled_dot_product_attention, scale=spec.scale)
    return partial(_capped, scale=spec.scale, cap=spec.softcap)


def _capped(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, scale: float, cap: float) -> Tensor:
    """cap * tanh(scores / cap) before the softmax, which is taken in float32."""
    scores = torch.matmul(q.float(), k.float().mT).mul_(scale / cap).tanh_().mul_(cap)
    weights = scores.masked_fill_(~attn_mask, -torch.inf).softmax(-1)
    return torch.matmul(weights.to(v.dtype), v)


class SdpaLayer(HeadsLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        super().__init__(spec, weights, ops)
        self.mix = _mix(spec)

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: SdpaPlan) -> None:
        for cache, values in zip(caches[self.spec.layer], (k, v), strict=True):
            cache[plan.block, plan.offset] = values

    def attend(self, q: Tensor, caches: Caches, plan: SdpaPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "not among this backend's features"
        result = torch.zeros_like(q, memory_format=torch.contiguous_format) if out is None else out
        keys, values = caches[self.spec.layer]
        if plan.decode is not None:
            self._decode(q, keys, values, plan.decode, result)
        for row in plan.prefill:
            self._prefill(q, keys, values, row, result)
        return result

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor, plan: Decode, out: Tensor) -> None:
        """The queries of a key head's group stand where a sequence of queries would."""
        spec = self.spec
        k, v = (cache[plan.block, plan.offset].transpose(1, 2) for cache in (keys, values))
        seen = plan.seen if spec.window is None else plan.seen & (plan.back < spec.window)
        grouped = q[plan.tokens].unflatten(1, (spec.num_kv_heads, -1))
        mixed = self.mix(grouped, k, v, attn_mask=seen)
        out[plan.tokens] = mixed.flatten(1, 2)

    def _prefill(self, q: Tensor, keys: Tensor, values: Tensor, plan: Prefill, out: Tensor) -> None:
        spec, rows = self.spec, slice(plan.first, plan.last)
        group = spec.num_heads // spec.num_kv_heads
        k, v = (
            cache[plan.blocks].flatten(0, 1)[: plan.keys].transpose(0, 1).repeat_interleave(group, 0)[None]
            for cache in (keys, values)
        )
        seen = plan.back >= 0
        if spec.window is not None:
            seen = seen & (plan.back < spec.window)
        mixed = self.mix(q[rows].transpose(0, 1)[None], k, v, attn_mask=seen)
        out[rows] = mixed[0].transpose(0, 1)
