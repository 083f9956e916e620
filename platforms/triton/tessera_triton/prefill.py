"""Attention of rows of any number of queries, over a paged cache: FlashAttention-2 (arXiv 2307.08691). A program takes
a tile of one row's queries, with all heads that share a head of keys."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tessera_triton.online import LN_2, LOG2_E, NOTHING, over_keys

_FAR = tl.constexpr(1 << 30)
_SEARCHED = tl.constexpr(128)  # rows that the search looks at together


@triton.jit
def row_of(tile, starts, first_row, rows, EACH: tl.constexpr, BLOCK: tl.constexpr) -> Any:
    """The row of a tile, and the tile's number in it. A tile has BLOCK places, of which a token takes EACH. Row i,
    whose places begin at s, has the tiles from s // BLOCK + i, so rows share no tile whatever their lengths, and a
    launch of T tokens needs at most T EACH / BLOCK + rows."""
    tile += tl.load(starts + first_row) * EACH // BLOCK + first_row
    row = first_row - 1
    for at in range(first_row, rows, _SEARCHED):
        index = at + tl.arange(0, _SEARCHED)
        start = tl.load(starts + index, mask=index < rows, other=_FAR // EACH)
        row += tl.sum((start * EACH // BLOCK + index <= tile).to(tl.int32), 0)
    return row, tile - tl.load(starts + row) * EACH // BLOCK - row


# q, q_token, q_head                       queries [T, H, D]; elements from a token, and from a head, to the next
# keys, key_block                          keys of the cache [blocks, SIZE, Hk, D]; elements from a block to the next
# values, value_block                      values, likewise
# key_scales, value_scales, scale_block    IN_INT8: [blocks, SIZE, Hk], elements from a block to the next; IN_FP8: [1]
# table, table_row                         block_tables of the launch; elements from a row to the next
# starts, lengths, ends                    query_start_loc, query_lens and seq_lens of the launch
# sinks                                    SINKS: [H]
# out, out_token, out_head                 [T, H, D]; elements from a token, and from a head, to the next
# sums                                     SUMS: [T, H] float32
# scale, cap                               of scores; scale is in powers of two, unless they are CAPPED
# first_row, rows                          the rows that are computed
# KV_HEADS, GROUP, DIM                     heads of keys, heads of queries that share one, elements of a head
# SIZE, WINDOW                             tokens of a block; tokens that a query sees, 0: all
# CAPPED, SINKS, IN_INT8, IN_FP8, SUMS     what there is
# BLOCK_M, BLOCK_N, BLOCK_D                queries times heads of a tile, keys of a turn, DIM as a power of two
@triton.jit(do_not_specialize=["table_row", "first_row", "rows"])
def prefill_tiles(
    q, q_token, q_head, keys, key_block, values, value_block, key_scales, value_scales, scale_block, table, table_row,
    starts, lengths, ends, sinks, out, out_token, out_head, sums, scale, cap, first_row, rows,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, IN_INT8: tl.constexpr, IN_FP8: tl.constexpr, SUMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """out [T, H, D] and, with SUMS, the natural log-sum-exp of scores [T, H], of the tokens of rows from first_row on.
    The last tiles of a row see the most keys, so they start first."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    head = tl.program_id(1)
    row, tile = row_of(tl.num_programs(0) - 1 - tl.program_id(0), starts, first_row, rows, 1, BLOCK_Q)
    length = tl.load(lengths + row)
    if tile * BLOCK_Q < length:
        end = tl.load(ends + row)
        place = tl.arange(0, BLOCK_M)
        query = tile * BLOCK_Q + place // GROUP
        asked = (place < BLOCK_Q * GROUP) & (query < length)
        token = tl.load(starts + row) + query.to(tl.int64)
        of = head * GROUP + place % GROUP
        column = tl.arange(0, BLOCK_D)
        inside = asked[:, None] & (column < DIM)[None, :]
        queries = tl.load(q + (token * q_token + of * q_head)[:, None] + column[None, :], mask=inside, other=0.0)

        mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        peak = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        if SINKS:
            peak = tl.load(sinks + of, mask=asked, other=0.0).to(tl.float32) * LOG2_E
            total += 1.0
        if IN_FP8:
            scale *= tl.load(key_scales)
        nearest = end - length + tile * BLOCK_Q  # position of the first query
        end = tl.minimum(nearest + BLOCK_Q, end)
        position = nearest + place // GROUP
        row_table = table + row.to(tl.int64) * table_row
        if WINDOW:
            oldest = tl.maximum(nearest - WINDOW + 1, 0)
            masked = oldest // BLOCK_N * BLOCK_N
        else:
            oldest = nearest * 0
            masked = (nearest + 1) // BLOCK_N * BLOCK_N  # before it, all queries see all keys
            mixed, peak, total = over_keys(
                queries, position, mixed, peak, total, row_table,
                keys + head * DIM, key_block, values + head * DIM, value_block,
                key_scales + head, value_scales + head, scale_block, 0, masked, oldest, scale, cap,
                KV_HEADS, DIM, SIZE, WINDOW, CAPPED, IN_INT8, False, BLOCK_N, BLOCK_D,
            )  # fmt: skip
        mixed, peak, total = over_keys(
            queries, position, mixed, peak, total, row_table,
            keys + head * DIM, key_block, values + head * DIM, value_block,
            key_scales + head, value_scales + head, scale_block, masked, end, oldest, scale, cap,
            KV_HEADS, DIM, SIZE, WINDOW, CAPPED, IN_INT8, True, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        mixed = mixed / tl.maximum(total, 1e-30)[:, None]
        if IN_FP8:
            mixed *= tl.load(value_scales)
        at = out + (token * out_token + of * out_head)[:, None] + column[None, :]
        tl.store(at, mixed.to(out.dtype.element_ty), mask=inside)
        if SUMS:
            tl.store(
                sums + token * (KV_HEADS * GROUP) + of, (peak + tl.log2(tl.maximum(total, 1e-30))) * LN_2, mask=asked
            )
