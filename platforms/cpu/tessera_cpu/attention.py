"""Attention with torch's scaled_dot_product_attention, or with matrix products if there is a soft cap: decoding rows in
one batch, prefilling rows one at a time. Keys and values are gathered by block, which is many times faster than by
token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    Device,
    FullAttentionSpec,
    HeadsLayer,
    Launch,
    LayerSpec,
    RotarySpec,
)
from tessera_cpu.rotary import Angles, angles, rotate


@dataclass
class Past:
    """The keys of one or several rows."""

    # of all rows, one after the other
    blocks: Tensor
    # rows, tokens of their blocks
    shape: tuple[int, int]
    # the most that any row has
    keys: int
    # places among all tokens that hold no row's keys; their content is arbitrary, including NaN
    stale: Tensor | None
    # [rows, 1, queries, 1]: the position of each query
    queries: Tensor
    # whether no key comes after a query
    whole: bool = False
    # whether the mask is exactly the causal one
    causal: bool = False
    # by window and dtype, made by the first layer that needs one
    masks: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def gather(self, cache: Tensor) -> Tensor:
        """[blocks, size, heads, dim] -> [rows, heads, keys, dim]."""
        chosen = torch.index_select(cache.flatten(1), 0, self.blocks).view(-1, *cache.shape[2:])
        if self.stale is not None:
            chosen.index_fill_(0, self.stale, 0.0)
        return chosen.view(*self.shape, *cache.shape[2:])[:, : self.keys].transpose(1, 2)

    def reaches(self, window: int | None) -> bool:
        """Whether every key up to a query's position is within its window."""
        return window is None or self.keys <= window

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The mask to add to scores: 0, or minus infinity for hidden keys. Computed once per launch."""
        if (window, dtype) not in self.masks:
            back = self.queries - torch.arange(self.keys)
            seen = back >= 0 if window is None else (back >= 0) & (back < window)
            self.masks[window, dtype] = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)
        return self.masks[window, dtype]


@dataclass(frozen=True)
class Part:
    """Rows that are computed together. tokens: their tokens in the launch, a slice or, if there are gaps, [rows]."""

    tokens: slice | Tensor
    past: Past


@dataclass(frozen=True)
class SdpaPlan:
    """What a group's layers compute."""

    # [tokens]: the block where each token's key and value are stored
    block: Tensor
    # [tokens]: its place in that block
    offset: Tensor
    # the rows that decode, if there are any
    decode: Part | None
    # the other rows
    prefill: tuple[Part, ...]
    # whether there are tokens between or after the rows
    padded: bool
    # by table and dtype, computed by the first layer that needs them
    angles: dict[tuple[int, RotarySpec, torch.dtype], Angles] = field(default_factory=dict)

    @cached_property
    def only_decode(self) -> bool:
        """Whether the launch consists only of decoding rows without gaps."""
        return self.decode is not None and isinstance(self.decode.tokens, slice) and not (self.prefill or self.padded)


class SdpaAttention(AttentionBackend):
    name = "sdpa"

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind != "attention" or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.sinks:
            return "no kernel for sinks"
        return None if spec.cache.dtype == spec.dtype else f"keys and values are kept in {spec.dtype} alone"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1))

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> SdpaLayer:
        return SdpaLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> SdpaPlan:
        size, table = launch.block_sizes[group.number], launch.block_tables[group.number]
        lengths, starts = (
            launch.query_lens_host[: launch.num_rows].tolist(),
            launch.query_start_loc[: launch.num_rows].tolist(),
        )
        decoding = 0
        while decoding < len(lengths) and lengths[decoding] == 1:
            decoding += 1
        keys = launch.seq_lens_host.tolist()
        decode = None
        if decoding:
            past = _decode_past(table[:decoding], launch.seq_lens[:decoding], keys[:decoding], size)
            decode = Part(_tokens(starts[:decoding]), past)
        prefill = tuple(
            Part(slice(starts[row], starts[row] + lengths[row]), _past(table[row], keys[row], lengths[row], size))
            for row in range(decoding, len(lengths))
        )
        slots = launch.slot_mapping[group.number].long()  # index type of writes; converted once, not in every layer
        return SdpaPlan(slots // size, slots % size, decode, prefill, launch.key.tokens != launch.num_tokens)


def _tokens(starts: list[int]) -> slice | Tensor:
    return slice(0, len(starts)) if starts[-1] == len(starts) - 1 else torch.tensor(starts)


def _decode_past(table: Tensor, seq_lens: Tensor, keys: list[int], size: int) -> Past:
    """The past of rows with one query each."""
    rows, widest = len(keys), max(keys)
    blocks = table[:, : -(-widest // size)]
    place = torch.arange(blocks.shape[1] * size)[None, :]
    nobodys = (place >= seq_lens[:, None]) | (blocks == 0).repeat_interleave(size, dim=1)
    nobodys[:, widest:] = False  # cut off anyway
    stale = nobodys.flatten().nonzero()[:, 0]
    return Past(
        blocks.flatten(),
        (rows, place.shape[1]),
        widest,
        stale if len(stale) else None,
        (seq_lens - 1)[:, None, None, None],
        whole=min(keys) == widest,
    )


def _past(table: Tensor, keys: int, queries: int, size: int) -> Past:
    """The past of one row with several queries."""
    blocks = table[: -(-keys // size)]
    given_up = (blocks == 0).repeat_interleave(size).nonzero()[:, 0]
    stale = given_up if len(given_up) else None
    positions = torch.arange(keys - queries, keys)[None, None, :, None]
    return Past(blocks, (1, len(blocks) * size), keys, stale, positions, causal=keys == queries)


class SdpaLayer(HeadsLayer):
    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: SdpaPlan) -> Tensor:
        spec = self.spec
        wide = x.view(len(x), spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        turning, v = wide.split((spec.num_heads + spec.num_kv_heads, spec.num_kv_heads), dim=1)
        apart = self.q_norm is not None or self.k_norm is not None
        if spec.rotary is not None and not apart:
            turning = rotate(spec.rotary, turning, self._angles(positions, x.dtype, plan))
        q, k = turning.split((spec.num_heads, spec.num_kv_heads), dim=1)
        if self.q_norm is not None:
            q = self.q_norm(q, self.weights["q_norm"])
        if self.k_norm is not None:
            k = self.k_norm(k, self.weights["k_norm"])
        if spec.rotary is not None and apart:
            factors = self._angles(positions, x.dtype, plan)
            q, k = rotate(spec.rotary, q, factors), rotate(spec.rotary, k, factors)
        self.write(k, v, caches, plan)
        mixed: Tensor = self.attend(q, caches, plan)
        return mixed.flatten(1)

    def _angles(self, positions: Tensor, dtype: torch.dtype, plan: SdpaPlan) -> Angles:
        spec, table = self.spec.rotary, self.weights["cos_sin"]
        assert spec is not None
        key = (table.data_ptr(), spec, dtype)
        if key not in plan.angles:
            plan.angles[key] = angles(spec, table, positions, dtype)
        return plan.angles[key]

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: SdpaPlan) -> None:
        for cache, values in zip(caches[self.spec.layer], (k, v), strict=True):
            cache[plan.block, plan.offset] = values

    def attend(self, q: Tensor, caches: Caches, plan: SdpaPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "not among this backend's features"
        keys, values = caches[self.spec.layer]
        if plan.only_decode and out is None:
            assert plan.decode is not None
            return self._decode(q, keys, values, plan.decode.past)
        if out is None:
            make = torch.zeros_like if plan.padded else torch.empty_like
            out = make(q, memory_format=torch.contiguous_format)
        if plan.decode is not None:
            out[plan.decode.tokens] = self._decode(q[plan.decode.tokens], keys, values, plan.decode.past)
        for row in plan.prefill:
            self._prefill(q, keys, values, row, out)
        return out

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor, past: Past) -> Tensor:
        """q [rows, H, D], one query per row. The queries of a key head's group take the place of a sequence of
        queries."""
        mask = None if past.whole and past.reaches(self.spec.window) else past.mask(self.spec.window, q.dtype)
        grouped = q.unflatten(1, (self.spec.num_kv_heads, -1))
        return self._mix(grouped, past.gather(keys), past.gather(values), mask).flatten(1, 2)

    def _prefill(self, q: Tensor, keys: Tensor, values: Tensor, part: Part, out: Tensor) -> None:
        past, window = part.past, self.spec.window
        group = self.spec.num_heads // self.spec.num_kv_heads
        k, v = (past.gather(cache).repeat_interleave(group, dim=1) for cache in (keys, values))
        queries = q[part.tokens].transpose(0, 1)[None]
        causal = past.causal and past.reaches(window) and self.spec.softcap is None
        mixed = self._mix(queries, k, v, None if causal else past.mask(window, q.dtype), causal=causal)
        out[part.tokens] = mixed[0].transpose(0, 1)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        scale, cap = self.spec.scale, self.spec.softcap
        if cap is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
        scores = torch.matmul(q.float(), k.float().mT).mul_(scale / cap).tanh_().mul_(cap)
        if mask is not None:
            scores += mask
        return torch.matmul(scores.softmax(-1).to(v.dtype), v)
