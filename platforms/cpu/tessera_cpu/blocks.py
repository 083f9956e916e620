"""Weights in the blocks of GGUF files (llama.cpp's ggml-common.h), multiplied with as they are: codes and scales are
only moved. Scales of four or six bits take eight, and codes of three bits four: an element has 4.56 bits in Q3_K (3.44
in the file), 4.625 in Q4_K (4.5), 5.625 in Q5_K (5.5) and 4.56 in IQ4_XS (4.25). Others take no more than in the
file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tessera.platform import Packed, Scheme
from tessera_cpu import native as kernels
from tessera_cpu.coded import CodedProducts, Form
from tessera_cpu.products import PANEL

AT_A_TIME = 64 * PANEL
"""Outputs."""

Parts = tuple[Tensor, Sequence[Tensor]]
"""Codes uint8 [n, k], and the fields of the records of their scales, each [n, records, numbers]."""


class BlockProducts(CodedProducts):
    """scheme: its weight's dtype is in BLOCKS."""

    def __init__(self, native: Any, scheme: Scheme) -> None:
        assert scheme.weight.encoding is not None
        self.kind, self.elements = _KINDS[scheme.weight.dtype], scheme.weight.encoding.elements
        super().__init__(native, self.kind.form)

    def pack(self, raw: Packed) -> Tensor:
        """The weight's blocks: uint8 [n, blocks, bytes]. They are taken apart a few outputs at a time, because a code
        takes a byte then."""
        blocks = raw["weight"]
        n, k = len(blocks), blocks.shape[1] * self.elements
        packed = torch.empty(self.packed_bytes(n, k), dtype=torch.uint8)
        for first in range(0, n, AT_A_TIME):
            codes, fields = self.kind.take(blocks[first : first + AT_A_TIME])
            self.put(packed, n, first, codes, kernels.PLAIN, k, fields)
        return packed


@dataclass(frozen=True)
class _Kind:
    form: Form
    take: Callable[[Tensor], Parts]


def _q4(blocks: Tensor) -> Parts:
    return _nibbles(blocks[..., 2:]), [_half(blocks, 0)]


def _q4_1(blocks: Tensor) -> Parts:
    return _nibbles(blocks[..., 4:]), [_half(blocks, 0, 2)]


def _q5_0(blocks: Tensor) -> Parts:
    return _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6]), [_half(blocks, 0)]


def _q5_1(blocks: Tensor) -> Parts:
    return _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8]), [_half(blocks, 0, 2)]


def _q8_0(blocks: Tensor) -> Parts:
    return (blocks[..., 2:] ^ 0x80).flatten(1), [_half(blocks, 0)]


def _q4_k(blocks: Tensor) -> Parts:
    """Bytes: two scales, 12 of scales and minimums, 128 of four bits each."""
    return _nibbles(blocks[..., 16:], 32), [_half(blocks, 0, 2), _six_bits(blocks[..., 4:16])]


def _q5_k(blocks: Tensor) -> Parts:
    """As Q4_K, with 32 bytes of fifth bits before the others."""
    high = _planes(blocks[..., 16:48], 1).flatten(1)
    return _nibbles(blocks[..., 48:], 32) | high << 4, [_half(blocks, 0, 2), _six_bits(blocks[..., 4:16])]


def _q6_k(blocks: Tensor) -> Parts:
    """Bytes: 128 of low four bits, 64 of high two bits, 16 scales, the scale of all."""
    high = _planes(blocks[..., 128:192].unflatten(-1, (2, 32)), 2).flatten(1)
    return _nibbles(blocks[..., :128], 64) | high << 4, [_half(blocks, 208), blocks[..., 192:208] ^ 0x80]


def _q3_k(blocks: Tensor) -> Parts:
    """Bytes: 32 of third bits, 64 of two bits, 12 of scales, the scale of all."""
    codes = _planes(blocks[..., 32:96].unflatten(-1, (2, 32)), 2).flatten(1)
    third = _planes(blocks[..., :32], 1).flatten(1)
    low, high = blocks[..., 96:104], blocks[..., 104:108]
    scales = torch.cat((low & 15, low >> 4), dim=-1) | _planes(high, 2).flatten(-2) << 4
    return codes | third << 2, [_half(blocks, 108), scales + 96]  # 32 is zero, and records add 128


def _iq4_xs(blocks: Tensor) -> Parts:
    """Bytes: the scale of all, 2 of high two bits of scales, 4 of their low four bits, 128 of codes."""
    low = _planes(blocks[..., 4:8], 4).transpose(-1, -2).flatten(-2)
    high = _planes(blocks[..., 2:4], 2).transpose(-1, -2).flatten(-2)
    scales = (low | high << 4) + 96
    return _nibbles(blocks[..., 8:]), [_half(blocks, 0), torch.cat((scales, torch.zeros_like(scales)), dim=-1)]


def _mxfp4(blocks: Tensor) -> Parts:
    """Bytes: an exponent, 16 of codes."""
    return _nibbles(blocks[..., 1:]), [blocks[..., :1]]


def _nvfp4(blocks: Tensor) -> Parts:
    """Bytes: four scales, of 16 values each; their codes, 8 bytes for each."""
    return _nibbles(blocks[..., 4:], 8), [blocks[..., :4].flatten(1).unsqueeze(-1)]


def _half(blocks: Tensor, *starts: int) -> Tensor:
    """The float16 numbers at some bytes of each block: int16 [n, blocks, numbers]."""
    return torch.cat([blocks[..., at : at + 2].contiguous().view(torch.int16) for at in starts], dim=-1)


def _nibbles(packed: Tensor, together: int = 16) -> Tensor:
    """The low halves of so many bytes, then the high ones: [n, blocks, bytes] -> [n, k]."""
    bytes_ = packed.unflatten(-1, (-1, together))
    return torch.stack((bytes_ & 15, bytes_ >> 4), dim=-2).flatten(1)


def _planes(packed: Tensor, width: int) -> Tensor:
    """The lowest bits of all bytes, then the next ones: [..., bytes] -> [..., 8 / width, bytes]."""
    return torch.stack([packed >> at & (1 << width) - 1 for at in range(0, 8, width)], dim=-2)


def _fifth_bits(packed: Tensor) -> Tensor:
    """32 bits of each block, in their place above four: [n, blocks, 4] -> [n, k]."""
    bits = torch.stack([packed >> at & 1 for at in range(8)], dim=-1)
    return bits.flatten(1) << 4


def _six_bits(packed: Tensor) -> Tensor:
    """Eight scales, then eight minimums. The first four of both are in the low bits of four bytes; the others have
    their low four bits in the last bytes, and their high two above those of the first."""
    first, second, last = packed.split(4, dim=-1)
    return torch.cat((first & 63, last & 15 | first >> 2 & 48, second & 63, last >> 4 | second >> 2 & 48), dim=-1)


_IQ4 = bytes(level + 128 for level in (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
# Twice the values of E2M1, whose scales are halved.
_E2M1 = bytes(level + 12 for level in (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))

_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "q4_0": _Kind(Form(kernels.FOURS, kernels.HALF, 8, 32), _q4),
        "q4_1": _Kind(Form(kernels.FOURS, kernels.MINIMUMS, 0, 32), _q4_1),
        "q5_0": _Kind(Form(kernels.FIVES, kernels.HALF, 16, 32), _q5_0),
        "q5_1": _Kind(Form(kernels.FIVES, kernels.MINIMUMS, 0, 32), _q5_1),
        "q8_0": _Kind(Form(kernels.BYTES, kernels.HALF, 128, 32), _q8_0),
        "q3_k": _Kind(Form(kernels.FOURS, kernels.K_SIGNED, 4, 16), _q3_k),
        "q4_k": _Kind(Form(kernels.FOURS, kernels.K_PAIRS, 0, 32), _q4_k),
        "q5_k": _Kind(Form(kernels.FIVES, kernels.K_PAIRS, 0, 32), _q5_k),
        "q6_k": _Kind(Form(kernels.SIXES, kernels.K_SIGNED, 32, 16), _q6_k),
        "iq4_nl": _Kind(Form(kernels.LEVELS, kernels.HALF, 128, 32, _IQ4), _q4),
        "iq4_xs": _Kind(Form(kernels.LEVELS, kernels.K_SIGNED, 128, 32, _IQ4), _iq4_xs),
        "mxfp4": _Kind(Form(kernels.LEVELS, kernels.EXPONENTS, 12, 32, _E2M1), _mxfp4),
        "nvfp4": _Kind(Form(kernels.LEVELS, kernels.FRACTIONS, 12, 16, _E2M1), _nvfp4),
    }
)

BLOCKS = frozenset(_KINDS)
"""The types of blocks that are multiplied with."""
