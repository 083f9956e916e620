"""Encoder attention, within the rows of a launch and without a cache: FlashAttention-2 (arXiv 2307.08691). A program
takes a tile of one row's queries, with all heads that share a head of keys, and reads queries, keys and values where
the projection left them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import e, log2
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    Device,
    EncoderLayer,
    Launch,
    LayerSpec,
    Mixer,
    Reason,
)
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.online import LOG2_E, NOTHING, capped, weighed
from tessera_triton.prefill import row_of
from tessera_triton.tiles import encoder_tile

_DTYPES = ("bfloat16", "float16", "float32")
_WIDEST = 256  # the largest head size
_MOST_GROUPED = 64  # query heads of a head of keys


@triton.jit
def _over_row(
    q, position, mixed, peak, total, keys, k_token, values, v_token, bias, first, end, scale, cap,
    DIM: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, REACH: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
) -> Any:  # fmt: skip
    """q [M, BLOCK_D] and its positions in the row [M] meet the row's keys from `first` to before `end`. mixed
    [M, BLOCK_D], peak and total [M]: what was summed so far, in float32, with scores as powers of two; returns the
    three. keys, values: of the row and the head. bias: REACH: of each query, where that of its distance 0 is [M, 1].
    MASKED: a turn may have keys that are not before `end`, or hidden from some of the queries."""
    column = tl.arange(0, BLOCK_D)
    for start in range(first, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        key_at = keys + (key.to(tl.int64) * k_token)[:, None] + column[None, :]
        value_at = values + (key.to(tl.int64) * v_token)[:, None] + column[None, :]
        if MASKED:  # what lies beyond may be NaN, which times 0 would be NaN
            inside = (key < end)[:, None] & (column < DIM)[None, :]
            k = tl.load(key_at, mask=inside, other=0.0)
            v = tl.load(value_at, mask=inside, other=0.0)
        elif DIM == BLOCK_D:
            k = tl.load(key_at)
            v = tl.load(value_at)
        else:
            k = tl.load(key_at, mask=(column < DIM)[None, :], other=0.0)
            v = tl.load(value_at, mask=(column < DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if CAPPED:
            scores = capped(scores, cap)
        distance = key[None, :] - position[:, None]
        if REACH:
            scores += tl.load(bias + tl.minimum(tl.maximum(distance, 1 - REACH), REACH - 1)) * LOG2_E
        if MASKED:
            seen = (key < end)[None, :]
            if WINDOW:
                seen &= (distance < WINDOW) & (distance > -WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        weights, fading, peak, total = weighed(scores, peak, total)
        mixed = tl.dot(weights.to(q.dtype), v, mixed * fading[:, None], input_precision="ieee")
    return mixed, peak, total


# q, q_token, q_head        queries [T, H, D]; elements from a token, and from a head, to the next
# k, k_token, k_head        keys [T, Hk, D], likewise
# v, v_token, v_head        values, likewise
# starts, lengths           query_start_loc and query_lens of the launch
# bias                      REACH: [H, 2 REACH - 1] float32, by the distance from a query to a key
# out                       dense [T, H, D]
# scale, cap                of scores; scale is in powers of two, unless they are CAPPED
# rows                      of the launch
# KV_HEADS, GROUP, DIM      heads of keys, heads of queries that share one, elements of a head
# WINDOW, REACH             distances below which a query sees a key, 0: all; distances that have a bias, 0: none
# CAPPED                    whether there is a cap
# BLOCK_M, BLOCK_N, BLOCK_D queries times heads of a tile, keys of a turn, DIM as a power of two
@triton.jit(do_not_specialize=["rows"])
def encoder_tiles(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head, starts, lengths, bias, out, scale, cap, rows,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    REACH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """out [T, H, D] of the tokens of rows; other tokens are not written."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    head = tl.program_id(1)
    row, tile = row_of(tl.program_id(0), starts, rows * 0, rows, 1, BLOCK_Q)
    length = tl.load(lengths + row)
    nearest = tile * BLOCK_Q  # position of the first query
    if nearest < length:
        start = tl.load(starts + row).to(tl.int64)
        place = tl.arange(0, BLOCK_M)
        position = nearest + place // GROUP
        asked = (place < BLOCK_Q * GROUP) & (position < length)
        of = head * GROUP + place % GROUP
        column = tl.arange(0, BLOCK_D)
        inside = asked[:, None] & (column < DIM)[None, :]
        token = start + position
        queries = tl.load(q + (token * q_token + of * q_head)[:, None] + column[None, :], mask=inside, other=0.0)

        mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        peak = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        keys = k + start * k_token + head * k_head
        values = v + start * v_token + head * v_head
        biases = bias + (tl.where(asked, of, 0) * (2 * REACH - 1) + REACH - 1)[:, None] if REACH else bias
        if WINDOW:
            masked = tl.maximum(nearest - WINDOW + 1, 0)
            end = tl.minimum(nearest + BLOCK_Q - 1 + WINDOW, length)
        else:
            masked, end = length // BLOCK_N * BLOCK_N, length
            mixed, peak, total = _over_row(
                queries, position, mixed, peak, total, keys, k_token, values, v_token, biases, 0, masked, scale, cap,
                DIM, WINDOW, CAPPED, REACH, False, BLOCK_N, BLOCK_D,
            )  # fmt: skip
        mixed, peak, total = _over_row(
            queries, position, mixed, peak, total, keys, k_token, values, v_token, biases, masked, end, scale, cap,
            DIM, WINDOW, CAPPED, REACH, True, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        mixed = mixed / tl.maximum(total, 1e-30)[:, None]
        at = out + ((token * (KV_HEADS * GROUP) + of) * DIM)[:, None] + column[None, :]
        tl.store(at, mixed.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class EncoderPlan:
    """The tensors of a launch, and what its shape says."""

    # query_start_loc of the launch
    starts: Tensor
    # query_lens of the launch
    lengths: Tensor
    # of the launch, padding included
    rows: int
    # of the launch, padding included
    tokens: int
    # tokens of the longest row
    width: int


class TritonEncoderAttention(AttentionBackend):
    """Grouped queries, heads of any size up to 256, windows, soft caps, a bias by distance."""

    name = "triton-encoder"

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        self.facts, self.launch = facts, launch or Launcher()

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind != "encoder_attention":
            return f"no encoder attention over {spec.kind}"
        if spec.sinks:
            return "no sinks where tokens see their whole text"
        if spec.dtype not in _DTYPES:
            return f"no kernels for {spec.dtype}"
        if spec.head_dim > _WIDEST:
            return f"heads of {spec.head_dim}, more than {_WIDEST}"
        if spec.num_heads > _MOST_GROUPED * spec.num_kv_heads:
            return f"more than {_MOST_GROUPED} query heads for a head of keys"
        return None

    def batch_invariant(self, spec: LayerSpec) -> Reason | None:
        return "a text is divided into larger tiles beside a longer one"

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return TritonEncoderLayer(spec, weights, ops, self.facts, self.launch)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> EncoderPlan:
        """The tensors are those of the launch, which keep their addresses."""
        key = launch.key
        return EncoderPlan(launch.query_start_loc, launch.query_lens, key.rows, key.tokens, key.width)


class TritonEncoderLayer(EncoderLayer):
    def __init__(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, facts: DeviceFacts, launch: Launcher
    ) -> None:
        super().__init__(spec, weights, ops)
        self.facts, self.launch = facts, launch
        self.group = spec.num_heads // spec.num_kv_heads
        # The scale of scores, in powers of two unless they are capped, and the cap.
        self.factors = (spec.scale * log2(e), 1.0) if spec.softcap is None else (spec.scale, spec.softcap)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: EncoderPlan) -> Tensor:
        spec = self.spec
        q, k, v = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, k, v))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        biased = spec.relative_reach > 0
        tile = encoder_tile(self.facts, spec.dtype, spec.head_dim, self.group, plan.width, biased=biased)
        self.launch(
            encoder_tiles, ((plan.tokens - 1) // (tile.queries // self.group) + plan.rows, spec.num_kv_heads),
            q, q.stride(0), q.stride(1), k, k.stride(0), k.stride(1), v, v.stride(0), v.stride(1),
            plan.starts, plan.lengths, self.weights["relative_bias"] if biased else q, out,
            *self.factors, plan.rows,
            KV_HEADS=spec.num_kv_heads, GROUP=self.group, DIM=spec.head_dim, WINDOW=spec.window or 0,
            CAPPED=spec.softcap is not None, REACH=spec.relative_reach, BLOCK_M=tile.queries, BLOCK_N=tile.keys,
            BLOCK_D=max(power_of_two(spec.head_dim), 16), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return out
