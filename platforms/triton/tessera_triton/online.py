"""Softmax over the keys of a paged cache as they are read, for a tile of queries: online softmax (arXiv 1805.02867), as
FlashAttention has it (arXiv 2205.14135). decode.py and prefill.py differ in their tiles and share this loop; copied.py
has a loop of its own, of the same steps."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tessera_triton.exact import from_eight_bits

NOTHING = tl.constexpr(-1.0e30)
"""The peak of no scores. It is finite, so that two of them have a difference."""

ENLARGED = tl.constexpr(64.0)
"""By which weights times scales of int8 are enlarged, since float16 holds small ones with a few bits alone. Its largest
numbers have the scale 516, so this is still in range."""

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _scales_at(place, there, MASKED: tl.constexpr):
    """A mask costs AMD's compilers a branch for each key."""
    if MASKED:
        return tl.load(place, mask=there, other=0.0)
    else:
        return tl.load(place)


@triton.jit
def capped(scores, cap) -> Any:
    """cap * tanh(scores / cap), in powers of two."""
    return (LOG2_E * cap) * (1.0 - 2.0 / (tl.exp(scores * (2.0 / cap)) + 1.0))


@triton.jit
def sees(position, key, WINDOW: tl.constexpr) -> Any:
    """Whether queries at positions [M] see keys [N]."""
    seen = key[None, :] <= position[:, None]
    if WINDOW:
        seen &= key[None, :] > position[:, None] - WINDOW
    return seen


@triton.jit
def weighed(scores, peak, total) -> Any:
    """Adds scores [M, N], as powers of two, to a softmax. Returns their weights, what earlier sums are to be multiplied
    by, and the new peak and total."""
    higher = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    fading = tl.exp2(peak - higher)
    return weights, fading, higher, total * fading + tl.sum(weights, 1)


@triton.jit
def block_of(table, key, end, SIZE: tl.constexpr) -> Any:
    """The block that has a key; for one that is not before `end`, the last key's. Without a mask, which would cost
    AMD's compilers a branch for each key."""
    return tl.load(table + tl.minimum(key, tl.maximum(end - 1, 0)) // SIZE)


@triton.jit
def over_keys(
    q, position, mixed, peak, total, table, keys, key_block, values, value_block, key_scales, value_scales, scale_block,
    first, end, oldest, scale, cap,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    IN_INT8: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
) -> Any:  # fmt: skip
    """q [M, BLOCK_D] and its positions [M] meet the keys from `first`, a multiple of BLOCK_N, to before `end`. mixed
    [M, BLOCK_D], peak and total [M]: what was summed so far, in float32, with scores as powers of two; returns the
    three. table: of the row. keys, values, key_scales, value_scales: those of the head. oldest: keys before it are not
    read. MASKED: some of the keys are beyond `end`, before `oldest`, or hidden from some of the queries."""
    column = tl.arange(0, BLOCK_D)
    if IN_INT8:
        mixed *= ENLARGED
    # of a turn's keys, which may be in one block
    place = 0 if SIZE % BLOCK_N == 0 else tl.arange(0, BLOCK_N)
    next_block = block_of(table, first + place, end, SIZE)
    for start in range(first, end, BLOCK_N):
        block = next_block.to(tl.int64)
        next_block = block_of(table, start + BLOCK_N + place, end, SIZE)
        key = start + tl.arange(0, BLOCK_N)
        there = key < end
        if WINDOW:
            there &= key >= oldest
        token = (key % SIZE) * KV_HEADS
        key_at = (block * key_block + token * DIM)[:, None] + column[None, :]
        value_at = (block * value_block + token * DIM)[:, None] + column[None, :]
        if MASKED:  # what lies beyond may be NaN, which times 0 would be NaN
            inside = there[:, None] & (column < DIM)[None, :]
            k = tl.load(keys + key_at, mask=inside, other=0.0)
            v = tl.load(values + value_at, mask=inside, other=0.0)
        elif DIM == BLOCK_D:
            k = tl.load(keys + key_at)
            v = tl.load(values + value_at)
        else:
            k = tl.load(keys + key_at, mask=(column < DIM)[None, :], other=0.0)
            v = tl.load(values + value_at, mask=(column < DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(from_eight_bits(k, q.dtype)), input_precision="ieee")
        if IN_INT8:
            scale_at = block * scale_block + token
            key_scale = _scales_at(key_scales + scale_at, there, MASKED)
            value_scale = _scales_at(value_scales + scale_at, there, MASKED)
            scores *= key_scale[None, :]
        scores *= scale
        if CAPPED:
            scores = capped(scores, cap)
        if MASKED:
            scores = tl.where(there[None, :] & sees(position, key, WINDOW), scores, float("-inf"))
        weights, fading, peak, total = weighed(scores, peak, total)
        if IN_INT8:
            weights *= value_scale[None, :] * ENLARGED
        mixed = tl.dot(
            weights.to(q.dtype), from_eight_bits(v, q.dtype), mixed * fading[:, None], input_precision="ieee"
        )
    if IN_INT8:
        mixed *= 1.0 / ENLARGED
    return mixed, peak, total
