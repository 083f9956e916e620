"""256 values of -1, 0 and 1 with a scale."""

from __future__ import annotations

import numpy as np

from tessera.gguf.blocks.bits import Bytes, Floats, half, planes, signed


def tq1_0(blocks: Bytes) -> Floats:
    """Bytes: 32 and 16 of five values each, 4 of four values, the scale. A byte is a fraction of 256, of which each
    multiplication by 3 brings the next value before the point."""
    fractions = np.empty((len(blocks), 256), np.uint8)
    for first, bytes_, start, count in ((0, 32, 0, 5), (32, 16, 160, 5), (48, 4, 240, 4)):
        packed = blocks[:, first : first + bytes_]
        for index in range(count):
            begin = start + index * bytes_
            np.multiply(packed, np.uint8(3**index), out=fractions[:, begin : begin + bytes_])
    codes = (fractions > 255 // 3).view(np.uint8) + (fractions > 511 // 3).view(np.uint8)
    return half(blocks, 52) * signed(codes, 1)


def tq2_0(blocks: Bytes) -> Floats:
    """Bytes: 64 of four values each, the scale."""
    codes = planes(blocks[:, :64].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return half(blocks, 64) * signed(codes, 1)
