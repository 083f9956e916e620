"""Attention of rows of any number of queries as in prefill.py, with keys and values that hardware copies, by tensor
descriptors and the block table (FlashAttention-3, arXiv 2407.08608). A program takes a tile of one row's queries, of
one head. Where its warps are specialized, one group copies, and two others compute half of the queries each.

A tile of keys lies in one block. The last tile ends with the last key, because what was never written may be NaN, which
times 0 would be NaN: it begins before its block, where a copy gives zeros, or with keys that the tile before had.

Triton divides specialized programs by rewriting them (3.6 to 3.9): it adds the half's first query to what a descriptor
is read at, and everywhere else that the same scalar is used, while ranges begin there too. So `token` is for the
descriptor alone; what else depends on queries begins with the row."""

from __future__ import annotations

import triton
import triton.language as tl

from tessera_triton.online import LN_2, LOG2_E, NOTHING, block_of, capped, sees, weighed
from tessera_triton.prefill import row_of


# As those of prefill_tiles, but for:
# tokens, blocks      numbers of q, and of keys and values
# HEADS               heads of queries
# SPECIALIZES         warps are specialized
# BLOCK_M, BLOCK_N    queries of a tile, keys of a turn
@triton.jit(do_not_specialize=["table_row", "first_row", "rows", "tokens", "blocks"])
def copied_tiles(
    q, q_token, keys, values, table, table_row, starts, lengths, ends, sinks, out, out_token, out_head, sums, scale,
    cap, first_row, rows, tokens, blocks,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, SUMS: tl.constexpr, SPECIALIZES: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:  # fmt: skip
    """q [T, H, D], keys and values [blocks, SIZE, Hk, D], all dense but for the distance of q's tokens -> out [T, H, D]
    and, with SUMS, the natural log-sum-exp of scores [T, H], of the tokens of rows from first_row on."""
    head = tl.program_id(1)
    row, tile = row_of(tl.num_programs(0) - 1 - tl.program_id(0), starts, first_row, rows, 1, BLOCK_M)
    length = tl.load(lengths + row)
    last = tl.load(ends + row)
    row_start = tl.load(starts + row)
    token = row_start + tile * BLOCK_M
    nearest = last - length + tile * BLOCK_M  # position of the first query
    end = tl.where(tile * BLOCK_M < length, tl.minimum(nearest + BLOCK_M, last), 0)
    position = nearest + tl.arange(0, BLOCK_M)
    first = tl.maximum(nearest - WINDOW + 1, 0) // BLOCK_N * BLOCK_N if WINDOW else 0

    WIDTH: tl.constexpr = HEADS // GROUP * DIM
    of_q = tl.make_tensor_descriptor(q, [tokens, HEADS * DIM], [q_token, 1], [BLOCK_M, DIM])
    of_k = tl.make_tensor_descriptor(keys, [blocks, SIZE, WIDTH], [SIZE * WIDTH, WIDTH, 1], [1, BLOCK_N, DIM])
    of_v = tl.make_tensor_descriptor(values, [blocks, SIZE, WIDTH], [SIZE * WIDTH, WIDTH, 1], [1, BLOCK_N, DIM])
    queries = of_q.load([token, head * DIM])
    across = head // GROUP * DIM
    row_table = table + row.to(tl.int64) * table_row

    mixed = tl.zeros([BLOCK_M, DIM], tl.float32)
    peak = tl.full([BLOCK_M], NOTHING, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:
        peak = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2_E
        total += 1.0
    if not SPECIALIZES:
        next_block = block_of(row_table, first, end, SIZE)
    for start in tl.range(first, end, BLOCK_N, warp_specialize=SPECIALIZES):
        if SPECIALIZES:  # the warps that copy wait for the number, and no others; carried, it does not compile
            block = tl.load(row_table + start // SIZE)
        else:
            block = next_block
            next_block = block_of(row_table, start + BLOCK_N, end, SIZE)
        back = tl.maximum(start + BLOCK_N - end, 0)  # of the last tile
        place = start % SIZE - back
        k = of_k.load([block, place, across]).reshape([BLOCK_N, DIM])
        v = of_v.load([block, place, across]).reshape([BLOCK_N, DIM])
        key = start - back + tl.arange(0, BLOCK_N)
        key = tl.where(key < start, end, key)  # which no query sees
        scores = tl.dot(queries, tl.trans(k)) * scale
        if CAPPED:
            scores = capped(scores, cap)
        scores = tl.where(sees(position, key, WINDOW), scores, float("-inf"))
        weights, fading, peak, total = weighed(scores, peak, total)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * fading[:, None])
    total = tl.maximum(total, 1e-30)
    mixed = mixed / total[:, None]
    query = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    asked = query < length
    at = row_start + query.to(tl.int64)
    column = tl.arange(0, DIM)
    tl.store(
        out + (at * out_token + head * out_head)[:, None] + column[None, :], mixed.to(out.dtype.element_ty),
        mask=asked[:, None],
    )  # fmt: skip
    if SUMS:
        tl.store(sums + at * HEADS + head, (peak + tl.log2(total)) * LN_2, mask=asked)
