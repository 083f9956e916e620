"""Codes of four bits that stand for uneven levels: E2M1 floats, and the levels of IQ4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tessera.gguf.blocks.bits import Bytes, Floats, alternating_nibbles, fields, half, nibbles, signed

# Twice the values of E2M1, so that they are integers; the scales are halved.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Half of 2 to the power of an exponent with the bias of float32, by exponent.
_E8M0 = np.ldexp(np.float32(1), np.arange(256) - 128)


def _ue4m3() -> Floats:
    """Half of the float that a byte stands for, whose highest bit means nothing. 127 is no number, and read as 0."""
    exponents, fractions = np.arange(256) >> 3 & 15, np.arange(256) & 7
    normal = np.ldexp(8 + fractions, exponents - 10)
    values: NDArray[np.float64] = np.where(exponents == 0, np.ldexp(fractions, -9), normal) / 2
    values[127] = 0
    return values.astype(np.float32)


_UE4M3 = _ue4m3()


def mxfp4(blocks: Bytes) -> Floats:
    """Bytes: an exponent, 16 of codes: the first 16 values in their low halves."""
    return _E8M0[blocks[:, :1]] * _levels(_E2M1, nibbles(blocks[:, 1:])).reshape(-1, 32)


def nvfp4(blocks: Bytes) -> Floats:
    """Bytes: four scales, each of 16 values; their codes, 8 bytes for each, the first 8 values in their low halves."""
    codes = nibbles(blocks[:, 4:].reshape(-1, 4, 8)).reshape(-1, 4, 16)
    return _UE4M3[blocks[:, :4, None]] * _levels(_E2M1, codes)


def iq4_nl(blocks: Bytes) -> Floats:
    """As Q4_0, with other levels."""
    return half(blocks, 0) * _levels(_IQ4, nibbles(blocks[:, 2:])).reshape(-1, 32)


def iq4_xs(blocks: Bytes) -> Floats:
    """Bytes: the scale; scales of 32 values each: 2 of high two bits, 4 of low four bits; 128 of codes."""
    high = fields(blocks[:, 2:4].view("<u2")[:, 0], range(0, 16, 2), 3).astype(np.uint8)
    scales = signed(alternating_nibbles(blocks[:, 4:8]) | high << np.uint8(4), 32)
    codes = nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 8, 32)
    return (half(blocks, 0) * scales)[..., None] * _levels(_IQ4, codes)


def _levels(levels: Floats, codes: Bytes) -> Floats:
    return np.take(levels, codes, mode="clip")
