"""Attention of rows with few queries each, over a paged cache. A program takes all queries that share a head of keys,
for a part of the row's keys; a second launch combines the parts: Flash-Decoding (arXiv 2311.01282).

How many parts a row has follows from the lengths of all rows, which each program adds up for itself: a part has as many
turns of the loop as the spare programs, which a launch has beside one for each row, divide all turns into, and up to
twice as many if the row is not divided. So a long row has many parts where others are short, and rows of equal lengths
have one each once they keep the device busy. A launch's shape, which a captured launch is made for, says only how many
programs there are."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tessera_triton.online import LN_2, LOG2_E, NOTHING, over_keys

LEAST_KEYS = tl.constexpr(128)
"""Of a part, if the row has as many."""

MOST_PARTS = tl.constexpr(64)
"""Of a row."""

_SEARCHED = tl.constexpr(512)  # rows that are looked at together


@triton.jit
def turns_of(row, rows, lengths, ends, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr) -> Any:
    """How many turns rows [N] take, 0 beyond `rows`."""
    there = row < rows
    end = tl.load(ends + row, mask=there, other=0)
    turns = tl.cdiv(end, BLOCK_N)
    if WINDOW:
        length = tl.load(lengths + row, mask=there, other=0)
        turns -= tl.maximum(end - length - WINDOW + 1, 0) // BLOCK_N
    return turns


@triton.jit
def least_turns(rows, spare, lengths, ends, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr) -> Any:
    """The least turns of a part of a divided row. It has less than twice as many, unless it has MOST_PARTS."""
    total = rows * 0
    for at in range(0, rows, _SEARCHED):
        total += tl.sum(turns_of(at + tl.arange(0, _SEARCHED), rows, lengths, ends, WINDOW, BLOCK_N), 0)
    return tl.maximum(tl.cdiv(total, spare), tl.cdiv(LEAST_KEYS, BLOCK_N))


@triton.jit
def divided(turns, least) -> Any:
    """Turns of each part of a row, and how many parts there are, at least 1, none of which is empty if there are
    turns. least: as least_turns() says."""
    parts = tl.minimum(tl.maximum(turns // least, 1), MOST_PARTS)
    each = tl.maximum(tl.cdiv(turns, parts), 1)
    return each, tl.maximum(tl.cdiv(turns, each), 1)


@triton.jit
def find_row(
    number, rows, least, lengths, ends, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, DIVIDED: tl.constexpr
) -> Any:
    """The row that has a part, the part's number in it, and how many parts there are of divided rows before it. -1 if
    no row has it. DIVIDED: `number` is that of a divided row instead. least: as least_turns() says."""
    row, part, place = rows * 0 - 1, rows * 0, rows * 0
    before, stored = rows * 0, rows * 0
    for at in range(0, rows, _SEARCHED):
        index = at + tl.arange(0, _SEARCHED)
        _, parts = divided(turns_of(index, rows, lengths, ends, WINDOW, BLOCK_N), least)
        several = tl.where(parts > 1, parts, 0)
        counted = (parts > 1).to(tl.int32) if DIVIDED else tl.where(index < rows, parts, 0)
        first = before + tl.cumsum(counted, 0) - counted
        here = (first <= number) & (number < first + counted)
        row += tl.sum(tl.where(here, index + 1, 0), 0)
        part += tl.sum(tl.where(here, number - first, 0), 0)
        place += tl.sum(tl.where(here, stored + tl.cumsum(several, 0) - several, 0), 0)
        before += tl.sum(counted, 0)
        stored += tl.sum(several, 0)
    return row, part, place


# As those of prefill_tiles, but for:
# parts, logs    [P, width, H, D] and [P, width, H] float32, of parts of divided rows
# rows, spare    rows that are computed; programs of a head beside one for each
# width          the most queries of a row
# fills          1: row i has token i, or none, and then gets zeros
@triton.jit(do_not_specialize=["table_row", "rows", "spare", "width", "fills"])
def decode_rows(
    q, q_token, q_head, keys, key_block, values, value_block, key_scales, value_scales, scale_block, table, table_row,
    starts, lengths, ends, sinks, out, out_token, out_head, sums, scale, cap, parts, logs, rows, spare, width, fills,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, IN_INT8: tl.constexpr, IN_FP8: tl.constexpr, SUMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """Of each part of a row, and head of keys: out [T, H, D] and, with SUMS, the natural log-sum-exp of scores [T, H].
    Of a divided row: parts and logs, the log-sum-exp in powers of two, by which combine_parts computes these."""
    head = tl.program_id(1)
    least = least_turns(rows, spare, lengths, ends, WINDOW, BLOCK_N)
    row, part, first_part = find_row(tl.program_id(0), rows, least, lengths, ends, WINDOW, BLOCK_N, False)
    if row >= 0:
        length, end = tl.load(lengths + row), tl.load(ends + row)
        place = tl.arange(0, BLOCK_M)
        query = place // GROUP
        token = tl.where(fills != 0, row, tl.load(starts + row)) + query.to(tl.int64)
        of = head * GROUP + place % GROUP
        column = tl.arange(0, BLOCK_D)
        asked = query < length
        inside = asked[:, None] & (column < DIM)[None, :]
        tile = tl.load(q + (token * q_token + of * q_head)[:, None] + column[None, :], mask=inside, other=0.0)

        oldest = tl.maximum(end - length - WINDOW + 1, 0) if WINDOW else end * 0
        first = oldest // BLOCK_N
        each, number = divided(tl.cdiv(end, BLOCK_N) - first, least)
        first += part * each
        mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        peak = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        if SINKS:
            own = tl.load(sinks + of, mask=asked, other=0.0).to(tl.float32) * LOG2_E
            peak = tl.where(part == 0, own, peak)
            total += tl.where(part == 0, 1.0, 0.0)
        if IN_FP8:
            scale *= tl.load(key_scales)
        mixed, peak, total = over_keys(
            tile, end - length + query, mixed, peak, total, table + row.to(tl.int64) * table_row,
            keys + head * DIM, key_block, values + head * DIM, value_block,
            key_scales + head, value_scales + head, scale_block,
            first * BLOCK_N, tl.minimum((first + each) * BLOCK_N, end), oldest, scale, cap,
            KV_HEADS, DIM, SIZE, WINDOW, CAPPED, IN_INT8, True, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        total = tl.maximum(total, 1e-30)
        mixed = mixed / total[:, None]
        if IN_FP8:
            mixed *= tl.load(value_scales)
        log = peak + tl.log2(total)
        written = asked | ((fills != 0) & (query == 0))
        kept = written[:, None] & (column < DIM)[None, :]
        if number == 1:
            result = out + (token * out_token + of * out_head)[:, None] + column[None, :]
            tl.store(result, mixed.to(out.dtype.element_ty), mask=kept)
            if SUMS:
                tl.store(sums + token * (KV_HEADS * GROUP) + of, log * LN_2, mask=written)
        else:
            at = ((first_part + part) * width + query) * (KV_HEADS * GROUP) + of
            tl.store(parts + at[:, None] * DIM + column[None, :], mixed, mask=kept)
            tl.store(logs + at, log, mask=written)


# As those of decode_rows, but for:
# HEADS          heads of queries
# BLOCK_N        of decode_rows
@triton.jit(do_not_specialize=["rows", "spare", "width", "fills"])
def combine_parts(
    parts, logs, starts, lengths, ends, out, out_token, out_head, sums, rows, spare, width, fills,
    HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, SUMS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """What decode_rows left of divided rows -> out [T, H, D] and, with SUMS, sums [T, H]. One program for each number
    that a divided row may have, place of a query in a row, and head."""
    query, head = tl.program_id(0) % width, tl.program_id(1)
    least = least_turns(rows, spare, lengths, ends, WINDOW, BLOCK_N)
    row, _, first_part = find_row(tl.program_id(0) // width, rows, least, lengths, ends, WINDOW, BLOCK_N, True)
    if row >= 0:
        length = tl.load(lengths + row)
        if query < length:
            turns = tl.sum(turns_of(row + tl.arange(0, 1), rows, lengths, ends, WINDOW, BLOCK_N), 0)
            _, number = divided(turns, least)
            token = tl.where(fills != 0, row, tl.load(starts + row)) + query.to(tl.int64)
            column, part = tl.arange(0, BLOCK_D), tl.arange(0, MOST_PARTS)
            there = part < number
            at = ((first_part + part) * width + query) * HEADS + head
            log = tl.load(logs + at, mask=there, other=NOTHING)
            peak = tl.max(log, 0)
            weights = tl.where(there, tl.exp2(log - peak), 0.0)
            inside = there[:, None] & (column < DIM)[None, :]
            mixed = tl.load(parts + at[:, None] * DIM + column[None, :], mask=inside, other=0.0)
            total = tl.sum(weights, 0)
            result = tl.sum(mixed * weights[:, None], 0) / tl.maximum(total, 1e-30)
            place = out + token * out_token + head * out_head + column
            tl.store(place, result.to(out.dtype.element_ty), mask=column < DIM)
            if SUMS:
                tl.store(sums + token * HEADS + head, (peak + tl.log2(total)) * LN_2)
