"""Latent attention over the latents themselves (MLA, DeepSeek-V2, arXiv:2405.04434): queries were multiplied with what
makes keys of latents, so that all heads share one key, and what they mix are latents. A tile takes pairs of a query and
a head, so that what is read is multiplied for many heads. Rows of few queries are divided as decode.py divides them.

Where an indexer selected the latents that a query sees (DeepSeek-V3.2, arXiv:2512.02556), each token is a row of its
own, whose latents are those of its selection."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tessera_triton.decode import divided, find_row, least_turns
from tessera_triton.online import NOTHING, block_of, sees, weighed
from tessera_triton.prefill import row_of


@triton.jit
def _loaded(rows, there, column, COLUMNS: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr) -> Any:
    """The columns of rows [M]. MASKED: only rows that are there."""
    if MASKED:
        return tl.load(rows[:, None] + column[None, :], mask=there[:, None] & (column < COLUMNS)[None, :], other=0.0)
    elif COLUMNS % BLOCK == 0:
        return tl.load(rows[:, None] + column[None, :])
    else:
        return tl.load(rows[:, None] + column[None, :], mask=(column < COLUMNS)[None, :], other=0.0)


@triton.jit
def _over_latents(
    q, turned, mask, position, mixed, peak, total, table, latents, latent_block, selection, first, end, scale,
    RANK: tl.constexpr, ROPE: tl.constexpr, SIZE: tl.constexpr, SELECTS: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, PIECE: tl.constexpr,
) -> Any:  # fmt: skip
    """Queries at q and turned [M], and their positions [M], meet the latents from `first`, a multiple of BLOCK_N, to
    before `end`. mask [M]: which queries there are. mixed [M, BLOCK_R], peak and total [M]: what was summed so far, in
    float32, with scores as powers of two; returns the three. table: of the row. SELECTS: latents are counted in those
    of the selection, of which negative ones are none. MASKED: some of the latents are beyond `end`, or hidden from some
    of the queries.

    Where PIECE is less than BLOCK_R, queries and latents are read for scores in pieces, and latents again to be mixed:
    whole queries would not fit the registers."""
    column, last = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_P)
    of_turned = _loaded(turned, mask, last, ROPE, True, BLOCK_P)
    if PIECE == BLOCK_R:
        whole = _loaded(q, mask, column, RANK, True, BLOCK_R)
    # of a turn's latents, which may be in one block
    place = 0 if SIZE % BLOCK_N == 0 and not SELECTS else tl.arange(0, BLOCK_N)
    if SELECTS:
        next_key = tl.load(selection + first + place, mask=first + place < end, other=-1)
        next_block = tl.load(table + tl.maximum(next_key, 0) // SIZE)
    else:
        next_block = block_of(table, first + place, end, SIZE)
    for start in range(first, end, BLOCK_N):
        block = next_block.to(tl.int64)
        # what lies beyond the last latent may be NaN, which times 0 would be NaN
        if SELECTS:
            key, there = tl.maximum(next_key, 0), next_key >= 0
            following = start + BLOCK_N + place
            next_key = tl.load(selection + following, mask=following < end, other=-1)
            next_block = tl.load(table + tl.maximum(next_key, 0) // SIZE)
        else:
            next_block = block_of(table, start + BLOCK_N + place, end, SIZE)
            key = start + tl.arange(0, BLOCK_N)
            there = key < end
        at = latents + (block * latent_block + (key % SIZE) * (RANK + ROPE))
        p = _loaded(at + RANK, there, last, ROPE, MASKED, BLOCK_P)
        scores = tl.dot(of_turned, tl.trans(p), input_precision="ieee")
        if PIECE == BLOCK_R:
            c = _loaded(at, there, column, RANK, MASKED, BLOCK_R)
            scores = tl.dot(whole, tl.trans(c), scores, input_precision="ieee")
        else:
            for begin in range(0, RANK, PIECE):
                some = begin + tl.arange(0, PIECE)
                part = _loaded(q, mask, some, RANK, True, PIECE)
                of_part = _loaded(at, there, some, RANK, MASKED, PIECE)
                scores = tl.dot(part, tl.trans(of_part), scores, input_precision="ieee")
            c = _loaded(at, there, column, RANK, MASKED, BLOCK_R)
        scores *= scale
        if SELECTS:
            scores = tl.where(there[None, :], scores, float("-inf"))
        elif MASKED:
            scores = tl.where(there[None, :] & sees(position, key, 0), scores, float("-inf"))
        weights, fading, peak, total = weighed(scores, peak, total)
        mixed = tl.dot(weights.to(c.dtype), c, mixed * fading[:, None], input_precision="ieee")
    return mixed, peak, total


# q, q_token, q_head                 absorbed queries [T, H, RANK]; elements from a token, and from a head, to the next
# turned, turned_token, turned_head  the last part of queries [T, H, ROPE], likewise
# latents, latent_block              of the cache [blocks, SIZE, RANK + ROPE]; elements from a block to the next
# table, table_row                   block_tables of the launch; elements from a row to the next
# starts, lengths, ends              query_start_loc, query_lens and seq_lens of the launch
# out, out_token, out_head           mixed latents [T, H, RANK]; elements from a token, and from a head, to the next
# scale                              of scores, in powers of two
# selection                          SELECTS: of tokens [T, SELECTS] int32
# parts, logs                        [P, width, H, RANK] and [P, width, H] float32, of parts of divided rows
# rows, spare, width, fills          as those of decode_rows
# HEADS, RANK, ROPE, SIZE            heads, elements of the two parts of a latent, tokens of a block
# SELECTS                            latents that are selected for a token, 0: it sees all up to its own. Rows are
#                                    tokens then, lengths and ends have their lengths and SELECTS, or 0 for tokens of no
#                                    row, and starts has the rows whose tables they have
# BLOCK_M, BLOCK_N                   queries times heads of a tile, latents of a turn
# BLOCK_R, BLOCK_P, PIECE            RANK and ROPE as powers of two, elements of RANK that scores take at a time
@triton.jit(do_not_specialize=["table_row", "rows", "spare", "width", "fills"])
def absorbed_rows(
    q, q_token, q_head, turned, turned_token, turned_head, latents, latent_block, table, table_row, starts, lengths,
    ends, out, out_token, out_head, scale, selection, parts, logs, rows, spare, width, fills,
    HEADS: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, SIZE: tl.constexpr, SELECTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, PIECE: tl.constexpr,
) -> None:  # fmt: skip
    """Of each part of a row, and tile of its queries times heads: out. Of a divided row: parts and logs, the
    log-sum-exp in powers of two, by which combine_parts computes it."""
    least = least_turns(rows, spare, lengths, ends, 0, BLOCK_N)
    row, part, first_part = find_row(tl.program_id(0), rows, least, lengths, ends, 0, BLOCK_N, False)
    if row >= 0:
        length, end = tl.load(lengths + row), tl.load(ends + row)
        first_pair = tl.program_id(1) * BLOCK_M
        if first_pair < tl.maximum(length, fills) * HEADS:
            pair = first_pair + tl.arange(0, BLOCK_M)
            query, head = pair // HEADS, (pair % HEADS).to(tl.int64)
            token = tl.where(fills != 0, row, tl.load(starts + row)) + query.to(tl.int64)
            asked = query < length
            each, number = divided(tl.cdiv(end, BLOCK_N), least)
            first = part * each
            of_table = (tl.load(starts + row) if SELECTS else row).to(tl.int64)
            mixed = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
            peak = tl.full([BLOCK_M], NOTHING, tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            mixed, peak, total = _over_latents(
                q + token * q_token + head * q_head, turned + token * turned_token + head * turned_head, asked,
                end - length + query, mixed, peak, total, table + of_table * table_row, latents, latent_block,
                selection + row.to(tl.int64) * SELECTS, first * BLOCK_N, tl.minimum((first + each) * BLOCK_N, end),
                scale, RANK, ROPE, SIZE, SELECTS, True, BLOCK_N, BLOCK_R, BLOCK_P, PIECE,
            )  # fmt: skip
            total = tl.maximum(total, 1e-30)
            mixed = mixed / total[:, None]
            column = tl.arange(0, BLOCK_R)
            written = asked | ((fills != 0) & (query == 0))
            kept = written[:, None] & (column < RANK)[None, :]
            if number == 1:
                result = out + (token * out_token + head * out_head)[:, None] + column[None, :]
                tl.store(result, mixed.to(out.dtype.element_ty), mask=kept)
            else:
                at = (first_part + part).to(tl.int64) * width * HEADS + pair
                tl.store(parts + (at * RANK)[:, None] + column[None, :], mixed, mask=kept)
                tl.store(logs + at, peak + tl.log2(total), mask=written)


# As those of absorbed_rows, but for:
# first_row, rows                    the rows that are computed
@triton.jit(do_not_specialize=["table_row", "first_row", "rows"])
def absorbed_tiles(
    q, q_token, q_head, turned, turned_token, turned_head, latents, latent_block, table, table_row, starts, lengths,
    ends, out, out_token, out_head, scale, first_row, rows,
    HEADS: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, PIECE: tl.constexpr,
) -> None:  # fmt: skip
    """out, of the tokens of rows from first_row on. The last tiles of a row see the most latents, so they start
    first."""
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    row, tile = row_of(number, starts, first_row, rows, HEADS, BLOCK_M)
    length = tl.load(lengths + row)
    if tile * BLOCK_M < length * HEADS:
        end = tl.load(ends + row)
        pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        query, head = pair // HEADS, (pair % HEADS).to(tl.int64)
        asked = query < length
        token = tl.load(starts + row) + query.to(tl.int64)
        of, of_turned = q + token * q_token + head * q_head, turned + token * turned_token + head * turned_head
        mixed = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        peak = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        before = end - length
        nearest = before + tile * BLOCK_M // HEADS  # position of the first query
        end = tl.minimum(before + (tile * BLOCK_M + BLOCK_M - 1) // HEADS + 1, end)
        masked = nearest * 0
        row_table = table + row.to(tl.int64) * table_row
        if PIECE < BLOCK_R:  # a mask costs AMD's compilers a branch for each latent; two loops, NVIDIA's registers
            masked = (nearest + 1) // BLOCK_N * BLOCK_N  # before it, all queries see all latents
            mixed, peak, total = _over_latents(
                of, of_turned, asked, before + query, mixed, peak, total, row_table, latents, latent_block, latents, 0,
                masked, scale, RANK, ROPE, SIZE, 0, False, BLOCK_N, BLOCK_R, BLOCK_P, PIECE,
            )  # fmt: skip
        mixed, peak, total = _over_latents(
            of, of_turned, asked, before + query, mixed, peak, total, row_table, latents, latent_block, latents, masked,
            end, scale, RANK, ROPE, SIZE, 0, True, BLOCK_N, BLOCK_R, BLOCK_P, PIECE,
        )  # fmt: skip
        mixed = mixed / tl.maximum(total, 1e-30)[:, None]
        column = tl.arange(0, BLOCK_R)
        at = out + (token * out_token + head * out_head)[:, None] + column[None, :]
        tl.store(at, mixed.to(out.dtype.element_ty), mask=asked[:, None] & (column < RANK)[None, :])
