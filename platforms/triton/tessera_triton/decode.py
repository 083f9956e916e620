"""Attention of rows with few queries each, over a paged cache. A program takes all queries that share a head of keys,
for a part of the row's keys; a second launch combines the parts: Flash-Decoding (arXiv 2311.01282). The number of parts
depends on the launch's shape alone."""

from __future__ import annotations

import triton
import triton.language as tl

from tessera_triton.online import LN_2, LOG2_E, NOTHING, over_keys


# As those of prefill_tiles, but for:
# out, sums    [T, H, SPLITS, D] and [T, H, SPLITS] float32, if there are several splits
# SPLITS       of a row's keys
# FILLS        row i has token i, or none
@triton.jit(do_not_specialize=["table_row"])
def decode_rows(
    q, q_token, q_head, keys, key_block, values, value_block, key_scales, value_scales, scale_block, table, table_row,
    starts, lengths, ends, sinks, out, out_token, out_head, sums, scale, cap,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, IN_INT8: tl.constexpr, IN_FP8: tl.constexpr, SUMS: tl.constexpr,
    SPLITS: tl.constexpr, FILLS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """Of each row, head of keys and split: out [T, H, D] and, with SUMS, the natural log-sum-exp of scores [T, H]. With
    several splits: each one's out [T, H, SPLITS, D] in float32, and the log-sum-exp [T, H, SPLITS] in powers of two.
    FILLS: row i has token i, and rows without one get zeros."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, end = tl.load(lengths + row), tl.load(ends + row)
    place = tl.arange(0, BLOCK_M)
    query = place // GROUP
    token = (row if FILLS else tl.load(starts + row)) + query.to(tl.int64)
    of = head * GROUP + place % GROUP
    column = tl.arange(0, BLOCK_D)
    asked = query < length
    inside = asked[:, None] & (column < DIM)[None, :]
    tile = tl.load(q + (token * q_token + of * q_head)[:, None] + column[None, :], mask=inside, other=0.0)

    oldest = tl.maximum(end - length - WINDOW + 1, 0) if WINDOW else end * 0
    first = oldest // BLOCK_N
    share = tl.cdiv(tl.cdiv(end, BLOCK_N) - first, SPLITS)
    first += split * share
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    peak = tl.full([BLOCK_M], NOTHING, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:
        own = tl.load(sinks + of, mask=asked, other=0.0).to(tl.float32) * LOG2_E
        peak = tl.where(split == 0, own, peak)
        total += tl.where(split == 0, 1.0, 0.0)
    if IN_FP8:
        scale *= tl.load(key_scales)
    mixed, peak, total = over_keys(
        tile, end - length + query, mixed, peak, total, table + row.to(tl.int64) * table_row,
        keys + head * DIM, key_block, values + head * DIM, value_block,
        key_scales + head, value_scales + head, scale_block,
        first * BLOCK_N, tl.minimum((first + share) * BLOCK_N, end), oldest, scale, cap,
        KV_HEADS, DIM, SIZE, WINDOW, CAPPED, IN_INT8, True, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    total = tl.maximum(total, 1e-30)
    mixed = mixed / total[:, None]
    if IN_FP8:
        mixed *= tl.load(value_scales)
    log = peak + tl.log2(total)
    written = (query == 0) if FILLS else asked
    if SPLITS == 1:
        at = token * out_token + of * out_head
        if SUMS:
            tl.store(sums + token * (KV_HEADS * GROUP) + of, log * LN_2, mask=written)
    else:
        part = (token * (KV_HEADS * GROUP) + of) * SPLITS + split
        at = part * DIM
        tl.store(sums + part, log, mask=written)
    kept = written[:, None] & (column < DIM)[None, :]
    tl.store(out + at[:, None] + column[None, :], mixed.to(out.dtype.element_ty), mask=kept)


@triton.jit
def combine_splits(
    parts, logs, starts, lengths, out, out_token, out_head, sums,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, SUMS: tl.constexpr, SPLITS: tl.constexpr,
    FILLS: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """parts [T, H, SPLITS, D], logs [T, H, SPLITS] of decode_rows -> out [T, H, D] and, with SUMS, sums [T, H]. One
    program for each row, place of a query in it, and head."""
    row, head = tl.program_id(0) // WIDTH, tl.program_id(1)
    query = tl.program_id(0) % WIDTH
    token = (row if FILLS else tl.load(starts + row)) + query.to(tl.int64)
    column, split = tl.arange(0, BLOCK_D), tl.arange(0, SPLITS)
    length = WIDTH if FILLS else tl.load(lengths + row)
    if query < length:
        part = (token * HEADS + head) * SPLITS + split
        log = tl.load(logs + part)
        peak = tl.maximum(tl.max(log, 0), NOTHING)
        weights = tl.exp2(log - peak)
        inside = (column < DIM)[None, :]
        mixed = tl.load(parts + part[:, None] * DIM + column[None, :], mask=inside, other=0.0)
        total = tl.sum(weights, 0)
        result = tl.sum(mixed * weights[:, None], 0) / tl.maximum(total, 1e-30)
        at = out + token * out_token + head * out_head + column
        tl.store(at, result.to(out.dtype.element_ty), mask=column < DIM)
        if SUMS:
            tl.store(sums + token * HEADS + head, (peak + tl.log2(total)) * LN_2)
