"""The norm of what a state mixer returns, with its gate, or the gate alone. A program takes some groups of a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from tessera_triton.facts import Launcher, power_of_two

_AT_ONCE = 2048  # elements of several groups that a program takes


@triton.jit
def _gated(value, gate, multipliers, at, inside, MULTIPLIED: tl.constexpr) -> Any:
    by = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    if MULTIPLIED:
        by *= tl.load(multipliers + at, mask=inside, other=0.0)
    return value * (by * tl.sigmoid(by))


# x                 dense [T, GROUPS, SIZE] float32
# gate, gate_token  [T, GROUPS, SIZE]; elements from a token to the next
# weight            NORMED: [SIZE], or [GROUPS, SIZE] if BY_GROUP, float32
# multipliers       MULTIPLIED: [GROUPS, SIZE] float32, of gates
# out               dense [T, GROUPS, SIZE]
# GATE_FIRST        the norm is behind the gate, not before it
# BLOCK_G, BLOCK_S  groups of a program, SIZE as a power of two
@triton.jit
def norm_and_gate(
    x, gate, gate_token, weight, multipliers, out, eps,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, NORMED: tl.constexpr, BY_GROUP: tl.constexpr, GATE_FIRST: tl.constexpr,
    MULTIPLIED: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr,
) -> None:  # fmt: skip
    """out of all tokens, padding included."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    column = tl.arange(0, BLOCK_S)
    inside = (group < GROUPS)[:, None] & (column < SIZE)[None, :]
    at = group[:, None] * SIZE + column[None, :]
    value = tl.load(x + token * (GROUPS * SIZE) + at, mask=inside, other=0.0)
    gates = gate + token * gate_token
    if GATE_FIRST:
        value = _gated(value, gates, multipliers, at, inside, MULTIPLIED)
    if NORMED:
        scale = tl.load(weight + (at if BY_GROUP else column[None, :]), mask=inside, other=0.0)
        value *= tl.rsqrt(tl.sum(value * value, 1) / SIZE + eps)[:, None] * scale
    if not GATE_FIRST:
        value = _gated(value, gates, multipliers, at, inside, MULTIPLIED)
    tl.store(out + token * (GROUPS * SIZE) + at, value.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class GatedNorm:
    """Of a layer's results. gate_first: as the kernel says."""

    launch: Launcher
    groups: int
    # elements of a group
    size: int
    eps: float
    gate_first: bool = False

    def __call__(
        self, x: Tensor, gate: Tensor, weight: Tensor | None, out: Tensor, multipliers: Tensor | None = None
    ) -> Tensor:
        """x [T, groups * size] float32, dense; gate [T, groups * size]; weight: of a group's elements, or of all; None:
        nothing is normed. Returns out, as x, in the dtype of activations."""
        size = power_of_two(self.size)
        together = min(max(_AT_ONCE // size, 1), power_of_two(self.groups))
        if len(x):
            self.launch(
                norm_and_gate, (len(x), -(-self.groups // together)),
                x, gate, gate.stride(0), x if weight is None else weight, x if multipliers is None else multipliers,
                out, self.eps,
                GROUPS=self.groups, SIZE=self.size, NORMED=weight is not None,
                BY_GROUP=weight is not None and weight.numel() > self.size, GATE_FIRST=self.gate_first,
                MULTIPLIED=multipliers is not None, BLOCK_G=together, BLOCK_S=size,
                num_warps=min(max(together * size // 512, 1), 16),
            )  # fmt: skip
        return out
