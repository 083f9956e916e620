"""256 values in groups of four or eight, each a point of a grid, with signs beside it or in it."""

from __future__ import annotations

from functools import cache

import numpy as np

from tessera.gguf.blocks.bits import Bytes, Floats, Words, alternating_nibbles, fields, half
from tessera.gguf.blocks.grids import IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, Grid, points

_SHIFT = np.float32(0.125)


def iq2_xxs(blocks: Bytes) -> Floats:
    """Bytes: the scale; for each 32 values 4 of points, and 4 of signs of 7 bits and a scale."""
    words = blocks[:, 2:].view("<u4").reshape(-1, 8, 2)
    numbers = blocks[:, 2:].reshape(-1, 8, 8)[..., :4]
    scales = half(blocks, 0) * (np.float32(0.5) + (words[..., 1] >> 28).astype(np.float32)) * np.float32(0.25)
    return _signed(scales, IQ2_XXS, numbers, _signs_of_words(words[..., 1]))


def iq2_xs(blocks: Bytes) -> Floats:
    """Bytes: the scale; 64 of points of 9 bits with signs of 7; 8 of scales."""
    words = blocks[:, 2:66].view("<u2")
    return _signed(_scales_of_nibbles(blocks, 66), IQ2_XS, words & 511, np.take(_even_signs(), words >> 9, mode="clip"))


def iq2_s(blocks: Bytes) -> Floats:
    """Bytes: the scale; 32 of points, 32 of signs, 8 of the points' high bits, 8 of scales."""
    high = fields(blocks[:, 66:74].astype(np.uint16), range(0, 8, 2), 3).reshape(-1, 32)
    numbers = blocks[:, 2:34] | high << 8
    return _signed(_scales_of_nibbles(blocks, 74), IQ2_S, numbers, np.take(_signs(), blocks[:, 34:66], mode="clip"))


def iq3_xxs(blocks: Bytes) -> Floats:
    """Bytes: the scale; 64 of points; for each 32 values 4 of signs of 7 bits and a scale."""
    words = blocks[:, 66:].view("<u4")
    scales = half(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5)
    return _signed(scales, IQ3_XXS, blocks[:, 2:66], _signs_of_words(words))


def iq3_s(blocks: Bytes) -> Floats:
    """Bytes: the scale; 64 of points, 8 of their high bits, 32 of signs, 4 of scales."""
    high = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    scales = half(blocks, 0) * (1 + 2 * alternating_nibbles(blocks[:, 106:]))
    return _signed(scales, IQ3_S, blocks[:, 2:66] | high << 8, np.take(_signs(), blocks[:, 74:106], mode="clip"))


def iq1_s(blocks: Bytes) -> Floats:
    """Bytes: the scale; 32 of points; for each 32 values 2 of the points' high bits, a scale and a shift's sign."""
    words = blocks[:, 34:].view("<u2")
    numbers = blocks[:, 2:34] | fields(words, range(0, 12, 3), 7).reshape(-1, 32) << 8
    scales = half(blocks, 0) * (2 * (words >> 12 & 7) + 1)
    return _shifted(scales, numbers, np.repeat(words >> 15, 4, axis=1))


def iq1_m(blocks: Bytes) -> Floats:
    """Bytes: 32 of points; 16 of their high bits and shifts' signs; 8 of scales of 16 values each, whose highest
    four bits are parts of the scale."""
    words = blocks[:, 48:].view("<u2")
    parts = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    scale = np.bitwise_or.reduce(parts, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    beside = alternating_nibbles(blocks[:, 32:48])
    numbers = blocks[:, :32] | (beside & 7).astype(np.uint16) << 8
    scales = scale * (2 * fields(words, range(0, 12, 3), 7).reshape(-1, 16) + 1)
    return _shifted(scales, numbers, beside >> 3)


def _signed(scales: Floats, grid: Grid, numbers: Words, signs: Words) -> Floats:
    """scales: float32 [n, groups]. numbers: of points [n, ...]. signs: of eight values each, uint64 [n, 32]."""
    values = np.take(points(grid), numbers, mode="clip").view(np.int8).reshape(len(scales), -1)
    values *= signs.view(np.int8).reshape(len(scales), -1)
    return scales[..., None] * values.astype(np.float32).reshape(*scales.shape, -1)


def _shifted(scales: Floats, numbers: Words, down: Words) -> Floats:
    """numbers: of points [n, 32]. down: 1 for each whose coordinates are lower by _SHIFT, 0 for higher ones."""
    values = np.take(points(IQ1), numbers, mode="clip").view(np.int8).astype(np.float32).reshape(*numbers.shape, 8)
    values += np.where(down == 0, _SHIFT, -_SHIFT)[..., None]
    return scales[..., None] * values.reshape(*scales.shape, -1)


def _scales_of_nibbles(blocks: Bytes, start: int) -> Floats:
    scales = alternating_nibbles(blocks[:, start : start + 8])
    return half(blocks, 0) * (np.float32(0.5) + scales) * np.float32(0.25)


def _signs_of_words(words: Words) -> Words:
    """uint32 [n, 8], of which the lowest 28 bits count, to uint64 [n, 8, 4]."""
    return np.take(_even_signs(), fields(words, range(0, 28, 7), 127), mode="clip")


@cache
def _signs() -> Words:
    """Eight signs by the byte that they are stored in: uint64 [256], whose bytes are 1 or -1 in int8."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (1 - 2 * bits.view(np.int8)).view(np.uint64)[:, 0]


@cache
def _even_signs() -> Words:
    """The same by seven bits, of which the eighth follows: the minus signs are even in number."""
    low = np.arange(128, dtype=np.uint8)
    odd = np.bitwise_xor.reduce(np.unpackbits(low[:, None], axis=1), axis=1)
    numbers: Bytes = low | odd << np.uint8(7)
    signs: Words = _signs()[numbers]
    return signs
