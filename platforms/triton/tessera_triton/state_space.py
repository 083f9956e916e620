"""The recurrence of Mamba 2: token by token, or in chunks, in which tokens read what others of their chunk write as in
attention whose scores fade, and what was before through the state (structured state space duality,
arXiv:2405.21060)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tessera_triton.split import product
from tessera_triton.state import softplus


@triton.jit
def _step(dt, dt_token, token, inside, multipliers, dt_bias, head, floor, ceiling, MULTIPLIED: tl.constexpr) -> Any:
    """Of a head's tokens; 0 if not inside."""
    found = tl.load(dt + token * dt_token + head, mask=inside, other=0.0).to(tl.float32)
    if MULTIPLIED:
        found *= tl.load(multipliers + head)
    found = softplus(found + tl.load(dt_bias + head))
    return tl.where(inside, tl.minimum(tl.maximum(found, floor), ceiling), 0.0)


# mixed                 dense [T, HEADS DIM + 2 GROUPS STATE_DIM] float32: inputs, B and C
# dt, dt_token          steps before their bias [T, HEADS]; elements from a token to the next
# multipliers           MULTIPLIED: [HEADS] float32, of dt
# a_log, d, dt_bias     [HEADS] float32
# state, state_slot     [slots, HEADS, DIM, STATE_DIM] float32; elements from a slot to the next
# table, table_row      slots of rows; elements from a row to the next
# starts, lengths       query_start_loc and query_lens of the launch
# ends                  seq_lens of the launch
# out                   dense [T, HEADS, DIM] float32
# floor, ceiling           limits of steps
# fills                 1: row i has token i, or none, and then gets zeros
# BLOCK_P, BLOCK_N      rows of the state of a program, STATE_DIM as a power of two
@triton.jit(do_not_specialize=["table_row", "fills"])
def space_steps(
    mixed, dt, dt_token, multipliers, a_log, d, dt_bias, state, state_slot, table, table_row, starts, lengths, ends,
    out, floor, ceiling, fills,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, STATE_DIM: tl.constexpr, MULTIPLIED: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
) -> None:  # fmt: skip
    """out of rows of a few tokens each, one after the other, and the state behind them."""
    WIDTH: tl.constexpr = HEADS * DIM + 2 * GROUPS * STATE_DIM
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    start = tl.where(fills != 0, row, tl.load(starts + row)).to(tl.int64)
    element = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    column = tl.arange(0, BLOCK_N)
    result = out + start * (HEADS * DIM) + head * DIM + element
    if length > 0:
        kept = state + tl.load(table + row * table_row).to(tl.int64) * state_slot + head * (DIM * STATE_DIM)
        kept += element[:, None] * STATE_DIM + column[None, :]
        there = (element < DIM)[:, None] & (column < STATE_DIM)[None, :]
        held = tl.load(kept, mask=there & (tl.load(ends + row) != length), other=0.0)
        rate, skipped = -tl.exp(tl.load(a_log + head)), tl.load(d + head)
        x_at = mixed + start * WIDTH + head * DIM + element
        b_at = mixed + start * WIDTH + HEADS * DIM + head // (HEADS // GROUPS) * STATE_DIM + column
        for number in range(length):
            x = tl.load(x_at, mask=element < DIM, other=0.0)
            b = tl.load(b_at, mask=column < STATE_DIM, other=0.0)
            c = tl.load(b_at + GROUPS * STATE_DIM, mask=column < STATE_DIM, other=0.0)
            step = _step(
                dt, dt_token, start + number, number >= 0, multipliers, dt_bias, head, floor, ceiling, MULTIPLIED
            )
            held = held * tl.exp(rate * step) + (step * x)[:, None] * b[None, :]
            tl.store(result, tl.sum(held * c[None, :], 1) + skipped * x, mask=element < DIM)
            x_at += WIDTH
            b_at += WIDTH
            result += HEADS * DIM
        tl.store(kept, held, mask=there)
    else:
        tl.store(result, tl.zeros([BLOCK_P], tl.float32), mask=(element < DIM) & (fills != 0))


# As those of space_steps, but for:
# first_row   the first row that is computed
# CHUNK       tokens of a chunk
@triton.jit(do_not_specialize=["table_row", "first_row"])
def space_rows(
    mixed, dt, dt_token, multipliers, a_log, d, dt_bias, state, state_slot, table, table_row, starts, lengths, ends,
    out, floor, ceiling, first_row,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, STATE_DIM: tl.constexpr, MULTIPLIED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
) -> None:  # fmt: skip
    """out of rows of any length, chunk by chunk, and the state behind them."""
    WIDTH: tl.constexpr = HEADS * DIM + 2 * GROUPS * STATE_DIM
    row, head = first_row + tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    if length > 0:
        start = tl.load(starts + row)
        element = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
        column = tl.arange(0, BLOCK_N)
        kept = state + tl.load(table + row * table_row).to(tl.int64) * state_slot + head * (DIM * STATE_DIM)
        kept += element[None, :] * STATE_DIM + column[:, None]
        there = (element < DIM)[None, :] & (column < STATE_DIM)[:, None]
        held = tl.load(kept, mask=there & (tl.load(ends + row) != length), other=0.0)  # [BLOCK_N, BLOCK_P]
        rate, skipped = -tl.exp(tl.load(a_log + head)), tl.load(d + head)
        i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
        for first in range(0, length, CHUNK):
            place = first + tl.arange(0, CHUNK)
            token, inside = (start + place).to(tl.int64), place < length
            step = _step(dt, dt_token, token, inside, multipliers, dt_bias, head, floor, ceiling, MULTIPLIED)
            since, whole = tl.cumsum(rate * step, 0), tl.sum(rate * step, 0)
            fading = tl.exp(tl.where(i >= j, since[:, None] - since[None, :], float("-inf")))
            of_group = inside[:, None] & (column < STATE_DIM)[None, :]
            b_at = (
                mixed + (token * WIDTH + HEADS * DIM + head // (HEADS // GROUPS) * STATE_DIM)[:, None] + column[None, :]
            )
            b = tl.load(b_at, mask=of_group, other=0.0)
            c = tl.load(b_at + GROUPS * STATE_DIM, mask=of_group, other=0.0)
            here = inside[:, None] & (element < DIM)[None, :]
            x = tl.load(mixed + (token * WIDTH + head * DIM)[:, None] + element[None, :], mask=here, other=0.0)
            written = x * step[:, None]
            read = product(c, held, tl.zeros([CHUNK, BLOCK_P], tl.float32)) * tl.exp(since)[:, None] + skipped * x
            scores = product(c, tl.trans(b), tl.zeros([CHUNK, CHUNK], tl.float32)) * fading
            read = product(scores, written, read)
            tl.store(out + (token * (HEADS * DIM) + head * DIM)[:, None] + element[None, :], read, mask=here)
            left = written * tl.exp(whole - since)[:, None]
            held = product(tl.trans(b), left, held * tl.exp(whole))
        tl.store(kept, held, mask=there)
