"""Rotary position embedding (RoFormer, arXiv:2104.09864). One program turns all query or key heads of one token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, RotarySpec
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two

_PER_WARP = 512  # pairs of elements


@triton.jit
def turn(
    x, heads, head_stride, stride, cos, sin,
    HALF: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Turns the heads of one token, which begin at x. cos, sin: [BLOCK]."""
    pair = tl.arange(0, BLOCK)[None, :]
    head = tl.arange(0, HEADS)[:, None]
    inside = (head < heads) & (pair < HALF)
    left = x + head * head_stride + (pair * 2 if PAIRS else pair) * stride
    right = left + (1 if PAIRS else HALF) * stride
    a = tl.load(left, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(right, mask=inside, other=0.0).to(tl.float32)
    tl.store(left, (a * cos - b * sin).to(x.dtype.element_ty), mask=inside)
    tl.store(right, (b * cos + a * sin).to(x.dtype.element_ty), mask=inside)


@triton.jit
def _turn_tokens(
    q, q_token, q_head, q_stride, q_heads, k, k_token, k_head, k_stride, k_heads, positions, cos_sin, cos_sin_stride,
    HALF: tl.constexpr, PAIRS: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first coordinate of a program is the token, the second 0 for queries and 1 for keys."""
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    table = cos_sin + tl.load(positions + token).to(tl.int64) * cos_sin_stride + pair
    cos = tl.load(table, mask=pair < HALF, other=0.0)[None, :]
    sin = tl.load(table + HALF, mask=pair < HALF, other=0.0)[None, :]
    if tl.program_id(1) == 0:
        turn(q + token * q_token, q_heads, q_head, q_stride, cos, sin, HALF, PAIRS, Q_HEADS, BLOCK)
    else:
        turn(k + token * k_token, k_heads, k_head, k_stride, cos, sin, HALF, PAIRS, K_HEADS, BLOCK)


@dataclass(frozen=True)
class Rotary(Kernel[RotarySpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: RotarySpec, ops: BoundOps, device: Device) -> Callable[..., None]:
        half = spec.dim // 2
        block = power_of_two(half)

        def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
            if not len(q):
                return
            table, q_heads, k_heads = cos_sin.contiguous(), power_of_two(q.shape[1]), power_of_two(k.shape[1])
            warps = min(max(q_heads * block // _PER_WARP, 1), 16)
            self.launch(
                _turn_tokens, (len(q), 2), q, *q.stride(), q.shape[1], k, *k.stride(), k.shape[1],
                positions.contiguous(), table, table.stride(0),
                HALF=half, PAIRS=spec.style == "pairs", Q_HEADS=q_heads, K_HEADS=k_heads, BLOCK=block, num_warps=warps,
            )  # fmt: skip

        return rotary
