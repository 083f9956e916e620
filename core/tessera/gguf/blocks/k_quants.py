"""256 values in groups of 16 or 32, whose scales (and minimums) are small integers times a scale of all."""

from __future__ import annotations

import numpy as np

from tessera.gguf.blocks.bits import Bytes, Floats, half, nibbles, planes, signed


def q2_k(blocks: Bytes) -> Floats:
    """Bytes: 16 of scales and minimums, 64 of two bits each, the scale, that of the minimums."""
    scales = (half(blocks, 80) * (blocks[:, :16] & 15))[..., None]
    minimums = (half(blocks, 82) * (blocks[:, :16] >> 4))[..., None]
    codes = planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    return _scaled(scales, codes, minimums)


def q3_k(blocks: Bytes) -> Floats:
    """Bytes: 32 of third bits, 64 of two bits each, 12 of scales, the scale."""
    low = nibbles(blocks[:, 96:104]).reshape(-1, 16)
    high = planes(blocks[:, 104:108], 2).reshape(-1, 16)
    scales = half(blocks, 108) * signed(low | high << np.uint8(4), 32)
    codes = planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    codes |= planes(blocks[:, :32], 1) << 2
    return scales[..., None] * signed(codes, 4).reshape(-1, 16, 16)


def q4_k(blocks: Bytes) -> Floats:
    """Bytes: the scale, that of the minimums, 12 of scales and minimums, 128 of four bits each."""
    codes = nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _scaled(*_scales_and_minimums(blocks, codes))


def q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with 32 bytes of fifth bits before the others."""
    codes = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    codes |= planes(blocks[:, 16:48], 1) << 4
    return _scaled(*_scales_and_minimums(blocks, codes))


def q6_k(blocks: Bytes) -> Floats:
    """Bytes: 128 of low four bits, 64 of high two bits, 16 scales, the scale."""
    codes = nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    codes |= planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32) << 4
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scales[..., None] * signed(codes, 32).reshape(-1, 16, 16)


def q8_k(blocks: Bytes) -> Floats:
    """Bytes: the scale in float32, 256 values, sums of 16 each."""
    return blocks[:, :4].view("<f4") * blocks[:, 4:260].view(np.int8).astype(np.float32)


def _scales_and_minimums(blocks: Bytes, codes: Bytes) -> tuple[Floats, Bytes, Floats]:
    """Scales, codes and minimums of Q4_K and Q5_K. Six bits each: the first four of both in the low bits of four bytes;
    the others have their low four bits in the last bytes, and their high two above those of the first."""
    first, second, last = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((first & 63, last & 15 | (first >> 2 & 48)), axis=1)
    minimums = np.concatenate((second & 63, last >> 4 | (second >> 2 & 48)), axis=1)
    return (half(blocks, 0) * scales)[..., None], codes, (half(blocks, 2) * minimums)[..., None]


def _scaled(scales: Floats, codes: Bytes, minimums: Floats) -> Floats:
    values = scales * codes.astype(np.float32)
    values -= minimums
    return values
