"""Numbers of a few bits, taken out of the bytes that hold several."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[Any]  # uint16 or uint32
Floats = NDArray[np.float32]


def nibbles(packed: Bytes) -> Bytes:
    """The low halves of bytes, then the high ones: uint8 [..., k] to uint8 [..., 2, k]."""
    codes = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., 0, :])
    np.right_shift(packed, 4, out=codes[..., 1, :])
    return codes


def alternating_nibbles(packed: Bytes) -> Bytes:
    """The low and the high half of each byte in turn: uint8 [n, k] to uint8 [n, 2 k]."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)


def planes(packed: Bytes, width: int) -> Bytes:
    """The lowest bits of bytes, then the next ones: uint8 [..., k] to uint8 [..., 8 / width, k]."""
    codes = np.empty((*packed.shape[:-1], 8 // width, packed.shape[-1]), np.uint8)
    for index in range(8 // width):
        np.right_shift(packed, index * width, out=codes[..., index, :])
    codes &= (1 << width) - 1
    return codes


def fields(words: Words, shifts: range, mask: int) -> Words:
    """What is in words at each of several bits: uint16 or uint32 [..., k] to [..., k, len(shifts)]."""
    numbers: Words = words[..., None] >> np.array(shifts, words.dtype)
    numbers &= words.dtype.type(mask)
    return numbers


def half(blocks: Bytes, start: int) -> Floats:
    """The float16 at a byte of each block: float32 [n, 1]."""
    return blocks[:, start : start + 2].view("<f2").astype(np.float32)


def signed(codes: Bytes, zero: int) -> Floats:
    """Codes, of which one stands for zero, as numbers: uint8, overwritten, to float32."""
    codes -= np.uint8(zero)
    return codes.view(np.int8).astype(np.float32)
