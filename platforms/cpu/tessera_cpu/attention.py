"""Attention on torch's scaled_dot_product_attention: rows that decode in one batch, rows that prefill one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """Rows of one token each: their tokens in the launch (a slice, or [rows] where there are gaps), where each key in
    sight is ([rows, keys]; past a row's end its last key again, so that nothing foreign is read), and which of them
    count [rows, 1, 1, keys]."""

    tokens: slice | Tensor
    block: Tensor
    offset: Tensor
    seen: Tensor


@dataclass(frozen=True)
class Prefill:
    """One row: its tokens in the launch, the blocks that they see, which of the tokens in those blocks are its keys,
    and which of the keys each query sees [queries, keys]."""

    first: int
    last: int
    blocks: Tensor
    keys: slice
    seen: Tensor


@dataclass(frozen=True)
class SdpaPlan:
    block: Tensor
    offset: Tensor
    decode: Decode | None
    prefill: tuple[Prefill, ...]


class SdpaAttention(AttentionBackend):
    name = "sdpa"

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind != "attention" or not isinstance(spec.cache, Paged):
            return f"no attention over {spec.kind}"
        return "no soft cap" if spec.softcap is not None else None

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1), host_lengths="exact")

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, Paged)
        axes = (("token", block_size), ("head", spec.num_kv_heads), ("dim", spec.head_dim))
        return KVLayout((Plane("k", spec.dtype, axes), Plane("v", spec.dtype, axes)))

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> SdpaLayer:
        return SdpaLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: int, buffers: Buffers | None) -> SdpaPlan:
        size, table, window = launch.block_sizes[group], launch.block_tables[group], launch.windows[group]
        lengths, starts = launch.q_len_host[: launch.num_rows], launch.q_start[: launch.num_rows].tolist()
        decoding = 0
        while decoding < len(lengths) and lengths[decoding] == 1:
            decoding += 1
        keys = launch.kv_len_host.tolist()
        prefill = tuple(
            _prefill(starts[row], int(lengths[row]), keys[row], table[row], size, window)
            for row in range(decoding, len(lengths))
        )
        decode = None
        if decoding:
            longest = max(keys[:decoding])
            widest = longest if window is None else min(longest, window)
            decode = _decode(_tokens(starts[:decoding]), launch.kv_len[:decoding], widest, table[:decoding], size)
        slots = launch.slots[group]
        return SdpaPlan(slots // size, slots % size, decode, prefill)


def _tokens(starts: list[int]) -> slice | Tensor:
    return slice(0, len(starts)) if starts[-1] == len(starts) - 1 else torch.tensor(starts)


def _decode(tokens: slice | Tensor, kv_len: Tensor, widest: int, table: Tensor, size: int) -> Decode:
    """Of each row the last `widest` keys, or all where it has fewer."""
    last = kv_len[:, None] - 1
    key = (last + 1 - widest).clamp(min=0) + torch.arange(widest)[None, :]
    at = torch.minimum(key, last)
    return Decode(tokens, table.gather(1, at // size), at % size, (key <= last)[:, None, None, :])


def _prefill(first: int, length: int, keys: int, table: Tensor, size: int, window: int | None) -> Prefill:
    query = torch.arange(keys - length, keys)[:, None]
    begin = 0 if window is None else max(keys - length - window + 1, 0)
    key = torch.arange(begin, keys)[None, :]
    seen = key <= query if window is None else (key <= query) & (key > query - window)
    passed = begin // size
    inside = slice(begin - passed * size, keys - passed * size)
    return Prefill(first, first + length, table[passed : -(-keys // size)], inside, seen)


class SdpaLayer(HeadsLayer):
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
        grouped = q[plan.tokens].unflatten(1, (spec.num_kv_heads, -1))
        mixed = F.scaled_dot_product_attention(grouped, k, v, attn_mask=plan.seen, scale=spec.scale)
        out[plan.tokens] = mixed.flatten(1, 2)

    def _prefill(self, q: Tensor, keys: Tensor, values: Tensor, plan: Prefill, out: Tensor) -> None:
        spec, rows = self.spec, slice(plan.first, plan.last)
        group = spec.num_heads // spec.num_kv_heads
        k, v = (
            cache[plan.blocks].flatten(0, 1)[plan.keys].transpose(0, 1).repeat_interleave(group, 0)[None]
            for cache in (keys, values)
        )
        queries = q[rows].transpose(0, 1)[None]
        mixed = F.scaled_dot_product_attention(queries, k, v, attn_mask=plan.seen, scale=spec.scale)
        out[rows] = mixed[0].transpose(0, 1)
