"""How kernels read a packed weight: what its codes stand for, and how its scales and minimums are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from tessera_triton.exact import from_eight_bits, from_few_bits

# What scales are, SCALING: floats, or in int32 with those of as many groups as find room: float16, or bfloat16 (BRAIN);
# two float16, the second of which is a minimum; whole numbers of a byte, a scale and a minimum, times those of a larger
# pair of float16; whole numbers with a sign, times a larger float16; exponents, of half of a power of two, biased by
# 127; halves of floats of four and three bits. Programs copy words ahead of their turn, and nothing smaller.
FLOATS, HALF, HALVES, K_PAIRS, K_SIGNED, EXPONENTS, FRACTIONS, BRAIN = (tl.constexpr(number) for number in range(8))
# What codes stand for, LEVELS: themselves; twice a float of two bits and one; the levels of IQ4_NL.
WHOLE, E2M1, IQ4 = (tl.constexpr(number) for number in range(3))
_GROUPS_OF_K = tl.constexpr(8)  # that share a larger scale of K_PAIRS; of K_SIGNED twice as many


@dataclass(frozen=True)
class Form:
    """early: weights are multiplied with their scales, and get their minimums, in float32 before they are multiplied
    with activations; otherwise sums are. It costs one rounding of each to the dtype of the activations, and is for
    weights that have minimums, or whose groups are too small."""

    # of a code, in halves of bytes and beyond four in words; 0: numbers of 8 bits
    bits: int = 0
    # the code of zero
    zero: int = 0
    # inputs that share a scale; 0: all
    group: int = 0
    # SCALING
    scaling: int = FLOATS.value
    # LEVELS
    levels: int = WHOLE.value
    early: bool = False


@triton.jit
def numbers_of(codes, shift, COMPUTE: tl.constexpr, LEVELS: tl.constexpr) -> Any:
    """What codes of up to seven bits stand for, each of them exactly. shift: the code of zero, if they stand for
    themselves."""
    if LEVELS == E2M1:
        # Where the exponent and the mantissa of a wider float end: the same number times a power of two.
        code = codes.to(tl.int32)
        if COMPUTE == tl.bfloat16:  # noqa: SIM300 - a constexpr compares from the left
            bits = ((code & 8) << 12) | ((code & 7) << 6)
            power = tl.full((1, 1), 2.0**127, tl.float32)
            return bits.to(tl.int16).to(tl.bfloat16, bitcast=True) * power.to(tl.bfloat16)
        elif COMPUTE == tl.float16:  # noqa: SIM300 - as above
            bits = ((code & 8) << 12) | ((code & 7) << 9)
            power = tl.full((1, 1), 32768.0, tl.float32)
            return bits.to(tl.int16).to(tl.float16, bitcast=True) * power.to(tl.float16)
        else:
            bits = ((code & 8) << 28) | ((code & 7) << 22)
            return bits.to(tl.float32, bitcast=True) * 2.0**127
    elif LEVELS == IQ4:
        # A byte for each of -127, -104, -83, -65; -49, -35, -22, -10; 1, 13, 25, 38; 53, 69, 89, 113.
        code = codes.to(tl.int32)
        negative = tl.where((code & 4) != 0, -0x09152231, -0x4052677F)
        positive = tl.where((code & 4) != 0, 0x71594535, 0x26190D01)
        word = tl.where((code & 8) != 0, positive, negative)
        return from_eight_bits((word >> ((code & 3) * 8)).to(tl.int8), COMPUTE)
    else:
        return from_few_bits(codes, shift, COMPUTE)


@triton.jit
def high_bits(high, n, column, inside, place, inputs, HIGH: tl.constexpr) -> Any:
    """The bits beyond four of the codes of 32 inputs from `place` on, for outputs, in their place: [inputs, outputs].
    high: int32 [words, n]."""
    words = tl.load(high + place // (32 // HIGH) * n + column, mask=inside, other=0)[None, :]
    if HIGH == 2:
        second = tl.load(high + (place // 16 + 1) * n + column, mask=inside, other=0)
        words = tl.where(inputs[:, None] < 16, words, second[None, :])
    return high_bits_of(words, inputs[:, None], HIGH)


@triton.jit
def high_bits_of(words, place, HIGH: tl.constexpr) -> Any:
    """place: of a code, which is in its word after all that come before it."""
    return ((words >> (place % (32 // HIGH) * HIGH)) & ((1 << HIGH) - 1)) << 4


@triton.jit
def scale_of(scale, larger, row, row_stride, group, group_step, inside, SCALING: tl.constexpr) -> Any:
    """The scale of a group, and its minimum, float32."""
    if SCALING == FLOATS:
        stored = tl.load(scale + row * row_stride + group * group_step, mask=inside, other=0.0).to(tl.float32)
        return stored, tl.zeros_like(stored)
    elif SCALING == HALVES:
        word = tl.load(scale + row * row_stride + group * group_step, mask=inside, other=0)
        return _half(word), _half(word >> 16)
    elif SCALING == HALF:
        stored = _half(_field(scale, row, row_stride, group, group_step, inside, 2))
        return stored, tl.zeros_like(stored)
    elif SCALING == BRAIN:
        stored = (_field(scale, row, row_stride, group, group_step, inside, 2) << 16).to(tl.float32, bitcast=True)
        return stored, tl.zeros_like(stored)
    elif SCALING == K_PAIRS:
        word = _field(scale, row, row_stride, group, group_step, inside, 2)
        both = tl.load(larger + row * row_stride + group // _GROUPS_OF_K * group_step, mask=inside, other=0)
        scales, minimums = (word & 255).to(tl.float32), ((word >> 8) & 255).to(tl.float32)
        return _half(both) * scales, -_half(both >> 16) * minimums
    elif SCALING == K_SIGNED:
        stored = _field(scale, row, row_stride, group, group_step, inside, 4).to(tl.int8).to(tl.float32)
        whole = _half(_field(larger, row, row_stride, group // (2 * _GROUPS_OF_K), group_step, inside, 2))
        return whole * stored, tl.zeros_like(stored)
    elif SCALING == EXPONENTS:
        exponent = _field(scale, row, row_stride, group, group_step, inside, 4) & 255
        bits = tl.where(exponent > 1, (exponent - 1) << 23, (exponent + 1) << 21)  # the first two are no normal floats
        stored = bits.to(tl.float32, bitcast=True)
        return stored, tl.zeros_like(stored)
    else:
        byte = _field(scale, row, row_stride, group, group_step, inside, 4) & 255
        bits = byte & 127
        normal = ((bits << 20) + (119 << 23)).to(tl.float32, bitcast=True)
        stored = tl.where(byte == 127, 0.0, tl.where(bits < 8, bits.to(tl.float32) * 0.0009765625, normal))
        return stored, tl.zeros_like(stored)


@triton.jit
def zero_of(zeros, row, row_stride, group, group_step, inside) -> Any:
    """The zero point of a group, float32. zeros: in int32, with those of three other groups."""
    return _field(zeros, row, row_stride, group, group_step, inside, 4).to(tl.int8).to(tl.float32)


@triton.jit
def _field(words, row, row_stride, number, step, inside, PER: tl.constexpr) -> Any:
    """What is stored of a group in the lowest bits of an int32, of words that hold PER of them each."""
    word = tl.load(words + row * row_stride + number // PER * step, mask=inside, other=0)
    return word >> (number % PER * (32 // PER))


@triton.jit
def _half(words) -> Any:
    """The float16 in the low half of a word."""
    return words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
