"""32 values with a scale, and a minimum in those whose names end in 1."""

from __future__ import annotations

import numpy as np

from tessera.gguf.blocks.bits import Bytes, Floats, half, nibbles, signed


def q4_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * signed(_codes(blocks, 2), 8)


def q4_1(blocks: Bytes) -> Floats:
    return half(blocks, 0) * _codes(blocks, 4).astype(np.float32) + half(blocks, 2)


def q5_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * signed(_codes(blocks, 6) | _fifth_bits(blocks, 2), 16)


def q5_1(blocks: Bytes) -> Floats:
    codes = _codes(blocks, 8) | _fifth_bits(blocks, 4)
    return half(blocks, 0) * codes.astype(np.float32) + half(blocks, 2)


def q8_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _codes(blocks: Bytes, start: int) -> Bytes:
    """Four bits each: the first 16 values in the low halves of bytes. uint8 [n, 32]."""
    return nibbles(blocks[:, start:]).reshape(-1, 32)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") << np.uint8(4)
