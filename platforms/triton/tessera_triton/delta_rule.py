"""The gated delta rule (Gated Delta Networks, arXiv:2412.06464): token by token, or in chunks.

In a chunk, what a token writes depends on what those before it wrote: a triangular system. It does not depend on the
state, so all chunks of all rows are solved at once (`delta_chunks`), in float16: queries, keys and beta are small, and
it has three bits more than bfloat16. Then the chunks of a row are walked, some columns of a head's state at a time
(`delta_rows`)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tessera_triton.prefill import row_of
from tessera_triton.split import product
from tessera_triton.state import softplus

_EPS = tl.constexpr(1e-6)  # in the length of queries and keys


@triton.jit
def _rates(side, side_token, token, inside, a_log, dt_bias, head, beta_scale, HEADS: tl.constexpr) -> Any:
    """Of a head's tokens, the logarithm of what is left of a state, and beta; 0 if not inside."""
    at = side + token * side_token + head
    b = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(at + HEADS, mask=inside, other=0.0).to(tl.float32)
    decay = -tl.exp(tl.load(a_log + head)) * softplus(a + tl.load(dt_bias + head))
    return tl.where(inside, decay, 0.0), tl.where(inside, beta_scale * tl.sigmoid(b), 0.0)


@triton.jit
def _units(at, inside, column, DIM: tl.constexpr) -> Any:
    """Some tokens' heads [T, BLOCK_K] with length 1; 0 if not inside [T]. at [T, 1]: where they are."""
    found = tl.load(at + column[None, :], mask=inside[:, None] & (column < DIM)[None, :], other=0.0)
    return found * tl.rsqrt(tl.sum(found * found, 1) + _EPS)[:, None]


# mixed              dense [T, 2 KEY_HEADS KEY_DIM + HEADS DIM] float32: queries, keys and values
# side, side_token   b and a [T, 2 HEADS]; elements from a token to the next
# a_log, dt_bias     [HEADS] float32
# state, state_slot  [slots, HEADS, KEY_DIM, DIM] float32; elements from a slot to the next
# table, table_row   slots of rows; elements from a row to the next
# starts, lengths    query_start_loc and query_lens of the launch
# ends               seq_lens of the launch
# out                dense [T, HEADS, DIM] float32
# scale              of queries
# beta_scale         of beta
# fills              1: row i has token i, or none, and then gets zeros
# BLOCK_K, BLOCK_V   KEY_DIM as a power of two, columns of the state of a program
@triton.jit(do_not_specialize=["table_row", "fills"])
def delta_steps(
    mixed, side, side_token, a_log, dt_bias, state, state_slot, table, table_row, starts, lengths, ends, out, scale,
    beta_scale, fills,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:  # fmt: skip
    """out of rows of a few tokens each, one after the other, and the state behind them."""
    WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * DIM
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    start = tl.where(fills != 0, row, tl.load(starts + row)).to(tl.int64)
    key = tl.arange(0, BLOCK_K)
    column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    result = out + start * (HEADS * DIM) + head * DIM + column
    if length > 0:
        kept = state + tl.load(table + row * table_row).to(tl.int64) * state_slot + head * (KEY_DIM * DIM)
        kept += key[:, None] * DIM + column[None, :]
        there = (key < KEY_DIM)[:, None] & (column < DIM)[None, :]
        held = tl.load(kept, mask=there & (tl.load(ends + row) != length), other=0.0)
        query_at = mixed + start * WIDTH + head // (HEADS // KEY_HEADS) * KEY_DIM + key
        value_at = mixed + start * WIDTH + 2 * KEY_HEADS * KEY_DIM + head * DIM + column
        for number in range(length):
            q = tl.load(query_at, mask=key < KEY_DIM, other=0.0)
            k = tl.load(query_at + KEY_HEADS * KEY_DIM, mask=key < KEY_DIM, other=0.0)
            v = tl.load(value_at, mask=column < DIM, other=0.0)
            q *= scale * tl.rsqrt(tl.sum(q * q, 0) + _EPS)
            k *= tl.rsqrt(tl.sum(k * k, 0) + _EPS)
            decay, beta = _rates(side, side_token, start + number, number >= 0, a_log, dt_bias, head, beta_scale, HEADS)
            held *= tl.exp(decay)
            held += k[:, None] * (beta * (v - tl.sum(k[:, None] * held, 0)))[None, :]
            tl.store(result, tl.sum(q[:, None] * held, 0), mask=column < DIM)
            query_at += WIDTH
            value_at += WIDTH
            result += HEADS * DIM
        tl.store(kept, held, mask=there)
    else:
        tl.store(result, tl.zeros([BLOCK_V], tl.float32), mask=(column < DIM) & (fills != 0))


@triton.jit
def _solution(system, CHUNK: tl.constexpr, DOUBLINGS: tl.constexpr) -> Any:
    """The inverse of 1 + `system` [CHUNK, CHUNK], which is 0 on its diagonal and above: of blocks of 1, 2, 4 and so on.
    That of two blocks is ((A, 0), (B, C))^-1 = ((A^-1, 0), (-C^-1 B A^-1, C^-1)). Powers of the system, which double
    faster, become so large where keys are alike that nothing is left of their sum."""
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    solved = tl.where(row == column, 1.0, 0.0)
    for step in tl.static_range(DOUBLINGS):
        below = ((row >> step) == (column >> step) + 1) & (((row >> step) & 1) == 1)
        between = tl.where(below, system, 0.0)
        if step == 0:
            solved -= between
        else:
            half = solved.to(tl.float16)
            solved -= tl.dot(tl.dot(half, between.to(tl.float16)).to(tl.float16), half)
    return solved


# As those of delta_steps, but for:
# systems            [chunks, HEADS, 2, CHUNK, CHUNK] float16, of each chunk: by what differs from what a state holds
#                    become what its tokens write; and how the tokens read what those up to them write
# first_row, rows    the rows that are computed
# DOUBLINGS          the logarithm of CHUNK
@triton.jit(do_not_specialize=["first_row", "rows"])
def delta_chunks(
    mixed, side, side_token, a_log, dt_bias, starts, lengths, systems, scale, beta_scale, first_row, rows,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, DIM: tl.constexpr, CHUNK: tl.constexpr,
    DOUBLINGS: tl.constexpr, BLOCK_K: tl.constexpr,
) -> None:  # fmt: skip
    """systems, of all chunks of rows."""
    WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * DIM
    head = tl.program_id(1)
    row, chunk = row_of(tl.program_id(0), starts, first_row, rows, 1, CHUNK)
    length = tl.load(lengths + row)
    if chunk * CHUNK < length:
        place = chunk * CHUNK + tl.arange(0, CHUNK)
        token, inside = (tl.load(starts + row) + place).to(tl.int64), place < length
        decay, beta = _rates(side, side_token, token, inside, a_log, dt_bias, head, beta_scale, HEADS)
        since = tl.cumsum(decay, 0)
        i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
        fading = tl.exp(tl.where(i >= j, since[:, None] - since[None, :], float("-inf")))
        key = tl.arange(0, BLOCK_K)
        at = mixed + token * WIDTH + head // (HEADS // KEY_HEADS) * KEY_DIM
        k = _units((at + KEY_HEADS * KEY_DIM)[:, None], inside, key, KEY_DIM).to(tl.float16)
        q = _units(at[:, None], inside, key, KEY_DIM).to(tl.float16)
        read = tl.dot(q, tl.trans(k)) * fading * scale
        system = tl.where(i > j, tl.dot(k, tl.trans(k)) * fading * beta[:, None], 0.0)
        solved = _solution(system, CHUNK, DOUBLINGS) * beta[None, :]
        put = systems + (tl.program_id(0).to(tl.int64) * HEADS + head) * (2 * CHUNK * CHUNK) + i * CHUNK + j
        tl.store(put, solved.to(tl.float16))
        tl.store(put + CHUNK * CHUNK, read.to(tl.float16))


# As those of delta_steps and delta_chunks
@triton.jit(do_not_specialize=["table_row", "first_row"])
def delta_rows(
    mixed, side, side_token, a_log, dt_bias, state, state_slot, table, table_row, starts, lengths, ends, systems, out,
    scale, beta_scale, first_row,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, DIM: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
) -> None:  # fmt: skip
    """out of rows of any length, chunk by chunk, and the state behind them."""
    WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * DIM
    row, head = first_row + tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    if length > 0:
        start = tl.load(starts + row)
        number = start // CHUNK + row - tl.load(starts + first_row) // CHUNK - first_row  # of the row's first chunk
        key = tl.arange(0, BLOCK_K)
        column = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
        kept = state + tl.load(table + row * table_row).to(tl.int64) * state_slot + head * (KEY_DIM * DIM)
        kept += key[:, None] * DIM + column[None, :]
        there = (key < KEY_DIM)[:, None] & (column < DIM)[None, :]
        held = tl.load(kept, mask=there & (tl.load(ends + row) != length), other=0.0)
        i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
        at_system = systems + (number.to(tl.int64) * HEADS + head) * (2 * CHUNK * CHUNK) + i * CHUNK + j
        nothing = tl.zeros([CHUNK, BLOCK_V], tl.float32)
        for first in range(0, length, CHUNK):
            place = first + tl.arange(0, CHUNK)
            token, inside = (start + place).to(tl.int64), place < length
            decay, _ = _rates(side, side_token, token, inside, a_log, dt_bias, head, beta_scale, HEADS)
            since = tl.cumsum(decay, 0)
            whole = tl.sum(decay, 0)
            here = inside[:, None] & (column < DIM)[None, :]
            at = mixed + token * WIDTH + head // (HEADS // KEY_HEADS) * KEY_DIM
            values = mixed + (token * WIDTH + 2 * KEY_HEADS * KEY_DIM + head * DIM)[:, None] + column[None, :]
            k = _units((at + KEY_HEADS * KEY_DIM)[:, None], inside, key, KEY_DIM)
            known = product(k, held, nothing) * tl.exp(since)[:, None]
            wrong = tl.load(values, mask=here, other=0.0) - known
            new = product(tl.load(at_system).to(tl.float32), wrong, nothing)
            q = _units(at[:, None], inside, key, KEY_DIM)
            read = product(q, held, nothing) * (scale * tl.exp(since))[:, None]
            read = product(tl.load(at_system + CHUNK * CHUNK).to(tl.float32), new, read)
            result = out + (token * (HEADS * DIM) + head * DIM)[:, None] + column[None, :]
            tl.store(result, read, mask=here)
            left = new * tl.exp(whole - since)[:, None]
            held = product(tl.trans(k), left, held * tl.exp(whole))
            at_system += HEADS * 2 * CHUNK * CHUNK
        tl.store(kept, held, mask=there)
