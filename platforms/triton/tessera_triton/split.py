"""Products of float32 by matrix instructions of 16 bits: an operand is the sum of a bfloat16 and of another for what
that rounds off. Three products of such parts have 16 bits of each operand right; one of rounded operands has 8."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def product(x, y, total) -> Any:
    """[M, K] and [K, N] float32, and what is added [M, N] -> [M, N] float32."""
    high, other = x.to(tl.bfloat16), y.to(tl.bfloat16)
    low = (x - high.to(tl.float32)).to(tl.bfloat16)
    other_low = (y - other.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(high, other, tl.dot(high, other_low, tl.dot(low, other, total)))
