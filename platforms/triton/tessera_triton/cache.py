"""Keys and values into the slots of a paged cache, also quantized, and the fused attention input before it: the split
of a projection, QK norm and rotary embedding. A program computes some heads, of one token or several, each a row."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tessera_triton.exact import rounded_whole

PLAIN = tl.constexpr(0)
IN_INT8 = tl.constexpr(1)
IN_FP8 = tl.constexpr(2)
"""How a cache keeps keys and values."""


@triton.jit
def _keep(
    rows, token, head, inside, slots, plane, plane_block, scales, scale_block,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, FORMAT: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Writes rows [R, BLOCK_D] float32, those of tokens and heads [R], into a plane. inside [R]: which there are.
    scales: the plane of scales, or the one number."""
    slot = tl.load(slots + token, mask=inside, other=0).to(tl.int64)
    block, place = slot // SIZE, (slot % SIZE) * KV_HEADS + head
    if FORMAT == IN_INT8:
        scale = tl.maximum(tl.max(tl.abs(rows), 1), 1e-12) / 127.0
        tl.store(scales + block * scale_block + place, scale, mask=inside)
        rows = tl.minimum(tl.maximum(rounded_whole(rows / scale[:, None]), -127.0), 127.0)
    if FORMAT == IN_FP8:  # numbers out of range become the largest, not NaN
        rows = tl.minimum(tl.maximum(rows / tl.load(scales), -448.0), 448.0)
    column = tl.arange(0, BLOCK_D)
    at = plane + (block * plane_block + place * DIM)[:, None] + column[None, :]
    tl.store(at, rows.to(plane.dtype.element_ty), mask=inside[:, None] & (column < DIM)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def write_heads(
    k, k_token, k_head, v, v_token, v_head, slots, keys, key_block, values, value_block, key_scales, value_scales,
    scale_block, tokens,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, FORMAT: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """k, v [T, Hk, D] into the slots [T]."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    token, head = (row // KV_HEADS).to(tl.int64), row % KV_HEADS
    there = token < tokens
    column = tl.arange(0, BLOCK_D)[None, :]
    inside = there[:, None] & (column < DIM)
    of_k = tl.load(k + (token * k_token + head * k_head)[:, None] + column, mask=inside, other=0.0).to(tl.float32)
    of_v = tl.load(v + (token * v_token + head * v_head)[:, None] + column, mask=inside, other=0.0).to(tl.float32)
    _keep(
        of_k, token, head, there, slots, keys, key_block, key_scales, scale_block,
        KV_HEADS, DIM, SIZE, FORMAT, BLOCK_D,
    )  # fmt: skip
    _keep(
        of_v, token, head, there, slots, values, value_block, value_scales, scale_block,
        KV_HEADS, DIM, SIZE, FORMAT, BLOCK_D,
    )  # fmt: skip


@triton.jit
def turned_heads(
    x, token, there, positions, cos_sin, angles_row, weight, eps, offset,
    DIM: tl.constexpr, ROTARY: tl.constexpr, PAIRS: tl.constexpr, NORMED: tl.constexpr, BLOCK_D: tl.constexpr,
) -> Any:  # fmt: skip
    """Heads that begin at x [R], normed and turned: [R, BLOCK_D] float32, rounded where the ops round. ROTARY: the
    elements that are turned, 0 for none."""
    column = tl.arange(0, BLOCK_D)
    inside = there[:, None] & (column < DIM)[None, :]
    rows = tl.load(x[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    act = x.dtype.element_ty
    if NORMED:
        factor = 1.0 / tl.sqrt(tl.sum(rows * rows, 1) / DIM + eps)
        gain = tl.load(weight + column, mask=column < DIM, other=0.0).to(tl.float32) + offset
        rows = (rows * factor[:, None] * gain[None, :]).to(act).to(tl.float32)
    if ROTARY:
        HALF: tl.constexpr = ROTARY // 2
        if PAIRS:
            other, angle, is_first = column ^ 1, column // 2, column % 2 == 0
        else:
            other, angle, is_first = (column + HALF) % ROTARY, column % HALF, column < HALF
        turning = column < ROTARY
        partner = tl.load(x[:, None] + other[None, :], mask=there[:, None] & turning[None, :], other=0.0)
        partner = partner.to(tl.float32)
        if NORMED:
            gain = tl.load(weight + other, mask=turning, other=0.0).to(tl.float32) + offset
            partner = (partner * factor[:, None] * gain[None, :]).to(act).to(tl.float32)
        position = tl.load(positions + token, mask=there, other=0).to(tl.int64)
        at = cos_sin + (position * angles_row)[:, None] + angle[None, :]
        angled = there[:, None] & turning[None, :]
        cos = tl.load(at, mask=angled, other=1.0)
        sin = tl.load(at + HALF, mask=angled, other=0.0)
        rows = (rows * cos + tl.where(is_first[None, :], -partner, partner) * sin).to(act).to(tl.float32)
    return rows


# x, x_token                               [T, (H + 2 Hk) D]; elements from a token to the next
# positions                                of tokens [T]
# cos_sin, angles_row                      [positions, ROTARY]: cosines, then sines; elements from a row to the next
# q_norm, k_norm                           Q_NORMED, K_NORMED: weights [D]
# slots                                    slot_mapping of the launch
# q                                        queries [T, H, D], dense
# keys, key_block                          keys of the cache [blocks, SIZE, Hk, D]; elements from a block to the next
# values, value_block                      values, likewise
# key_scales, value_scales, scale_block    FORMAT in int8 [blocks, SIZE, Hk], elements between blocks; in fp8 [1]
# tokens                                   T
# q_eps, q_offset, k_eps, k_offset         of the norms
# HEADS, KV_HEADS, DIM                     heads of queries, heads of keys, elements of a head
# SIZE, FORMAT                             tokens of a block; in what the cache keeps numbers
# ROTARY, PAIRS                            elements of a head that are turned; whether partners lie side by side
# Q_NORMED, K_NORMED                       which norms there are
# BLOCK_R, BLOCK_D                         tokens times heads of a program, DIM as a power of two
@triton.jit(do_not_specialize=["tokens"])
def heads_input(
    x, x_token, positions, cos_sin, angles_row, q_norm, k_norm, slots, q, keys, key_block, values, value_block,
    key_scales, value_scales, scale_block, tokens, q_eps, q_offset, k_eps, k_offset,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, FORMAT: tl.constexpr,
    ROTARY: tl.constexpr, PAIRS: tl.constexpr, Q_NORMED: tl.constexpr, K_NORMED: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """x [T, (H + 2 Hk) D] -> q [T, H, D], normed and turned; keys, likewise, and values into the slots [T]. The first
    programs compute queries, the next ones keys, the last ones values."""
    part = tl.program_id(0)
    of_q, of_k = tl.cdiv(tokens * HEADS, BLOCK_R), tl.cdiv(tokens * KV_HEADS, BLOCK_R)
    row = tl.arange(0, BLOCK_R)
    if part < of_q:
        row += part * BLOCK_R
        token, head = (row // HEADS).to(tl.int64), row % HEADS
        there = token < tokens
        rows = turned_heads(
            x + token * x_token + head * DIM, token, there, positions, cos_sin, angles_row, q_norm, q_eps, q_offset,
            DIM, ROTARY, PAIRS, Q_NORMED, BLOCK_D,
        )  # fmt: skip
        column = tl.arange(0, BLOCK_D)[None, :]
        at = q + ((token * HEADS + head) * DIM)[:, None] + column
        tl.store(at, rows.to(q.dtype.element_ty), mask=there[:, None] & (column < DIM))
    elif part < of_q + of_k:
        row += (part - of_q) * BLOCK_R
        token, head = (row // KV_HEADS).to(tl.int64), row % KV_HEADS
        there = token < tokens
        rows = turned_heads(
            x + token * x_token + (HEADS + head) * DIM, token, there, positions, cos_sin, angles_row, k_norm, k_eps,
            k_offset, DIM, ROTARY, PAIRS, K_NORMED, BLOCK_D,
        )  # fmt: skip
        _keep(
            rows, token, head, there, slots, keys, key_block, key_scales, scale_block,
            KV_HEADS, DIM, SIZE, FORMAT, BLOCK_D,
        )  # fmt: skip
    else:
        row += (part - of_q - of_k) * BLOCK_R
        token, head = (row // KV_HEADS).to(tl.int64), row % KV_HEADS
        there = token < tokens
        rows = turned_heads(
            x + token * x_token + (HEADS + KV_HEADS + head) * DIM, token, there, positions, cos_sin, angles_row, k_norm,
            k_eps, k_offset, DIM, 0, False, False, BLOCK_D,
        )  # fmt: skip
        _keep(
            rows, token, head, there, slots, values, value_block, value_scales, scale_block,
            KV_HEADS, DIM, SIZE, FORMAT, BLOCK_D,
        )  # fmt: skip
