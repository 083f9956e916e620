"""Latents into the slots of a paged cache, and the fused input of latent attention before it: the norm of a latent's
first part, and the rotary embedding of its last part and of queries. A program computes the latents of some tokens, or
the queries of one."""

from __future__ import annotations

import triton
import triton.language as tl

from tessera_triton.cache import turned_heads
from tessera_triton.rotary import turn


# q, q_token, q_head           TURNS: the last part of queries [T, H, ROPE]; elements between tokens, and between heads
# latent, latent_token         [T, RANK + ROPE]; elements from a token to the next
# positions                    of tokens [T]
# cos_sin, angles_row          [positions, ROTARY]: cosines, then sines; elements from a row to the next
# weight, eps, offset          NORMED: of the norm; the weight is [RANK]
# slots                        slot_mapping of the launch
# latents, latent_block        of the cache [blocks, SIZE, RANK + ROPE]; elements from a block to the next
# tokens                       T
# HEADS, RANK, ROPE, SIZE      heads of queries, elements of the two parts of a latent, tokens of a block
# ROTARY, PAIRS                elements of ROPE that are turned, 0 for none; whether partners lie side by side
# NORMED                       whether the latent is to be normed
# BLOCK_T                      tokens whose latents a program computes
# BLOCK_H, BLOCK_R, BLOCK_P    HEADS, RANK and ROPE as powers of two
# BLOCK_A                      half of ROTARY as a power of two
@triton.jit(do_not_specialize=["tokens"])
def latent_input(
    q, q_token, q_head, latent, latent_token, positions, cos_sin, angles_row, weight, eps, offset, slots, latents,
    latent_block, tokens,
    HEADS: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr,
    PAIRS: tl.constexpr, NORMED: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_A: tl.constexpr,
) -> None:  # fmt: skip
    """The latents of tokens, normed and turned, into the slots [T], and their queries turned in place. The first
    programs compute latents, the next ones queries."""
    part, of_latents = tl.program_id(0), tl.cdiv(tokens, BLOCK_T)
    if part < of_latents:
        token = part.to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
        there = token < tokens
        own = latent + token * latent_token
        first = turned_heads(
            own, token, there, positions, cos_sin, angles_row, weight, eps, offset, RANK, 0, False, NORMED, BLOCK_R
        )
        last = turned_heads(
            own + RANK, token, there, positions, cos_sin, angles_row, weight, eps, offset, ROPE, ROTARY, PAIRS, False,
            BLOCK_P,
        )  # fmt: skip
        slot = tl.load(slots + token, mask=there, other=0).to(tl.int64)
        at = (latents + slot // SIZE * latent_block + slot % SIZE * (RANK + ROPE))[:, None]
        column, turned = tl.arange(0, BLOCK_R)[None, :], tl.arange(0, BLOCK_P)[None, :]
        tl.store(at + column, first.to(latents.dtype.element_ty), mask=there[:, None] & (column < RANK))
        tl.store(at + RANK + turned, last.to(latents.dtype.element_ty), mask=there[:, None] & (turned < ROPE))
    else:
        asking = (part - of_latents).to(tl.int64)
        pair = tl.arange(0, BLOCK_A)
        table = cos_sin + tl.load(positions + asking).to(tl.int64) * angles_row + pair
        inside = pair < ROTARY // 2
        cos = tl.load(table, mask=inside, other=0.0)[None, :]
        sin = tl.load(table + ROTARY // 2, mask=inside, other=0.0)[None, :]
        turn(q + asking * q_token, HEADS, q_head, 1, cos, sin, ROTARY // 2, PAIRS, BLOCK_H, BLOCK_A)
