"""Whole numbers of a few bits as floats, each of them exactly, so that nothing need be rounded; and floats rounded to
whole numbers.

Compilers round what they convert to bfloat16 by several instructions where the device has none for it, and convert
whole numbers slowly."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def from_few_bits(bits, shift, COMPUTE: tl.constexpr) -> Any:
    """Whole numbers of up to seven bits, minus shift, which is one: the last bits of the mantissa of a power of two
    count from 0."""
    if COMPUTE == tl.bfloat16:  # noqa: SIM300 - a constexpr compares from the left
        number = (bits.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
        return number - (shift + 128.0).to(tl.bfloat16)
    elif COMPUTE == tl.float16:  # noqa: SIM300 - as above
        number = (bits.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
        return number - (shift + 1024.0).to(tl.float16)
    else:
        number = (bits.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True)
        return number - (shift + 8388608.0)


@triton.jit
def from_eight_bits(x, COMPUTE: tl.constexpr) -> Any:
    """int8 as COMPUTE; floats are converted as ever. The mantissa of bfloat16 has 8 bits, so the lower half of such a
    float32 is zeros."""
    if x.dtype == tl.int8 and COMPUTE == tl.bfloat16:  # noqa: SIM300 - as above
        return (x.to(tl.float32).to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(COMPUTE)


@triton.jit
def rounded_whole(x) -> Any:
    """To whole numbers, of two equally near ones to the even one; for magnitudes below 2^22."""
    return (x + 12582912.0) - 12582912.0
