"""Weights in the blocks of GGUF files (llama.cpp's ggml-common.h), as kernels take them: codes, scales and minimums are
only moved. Scales and minimums of six bits take eight, so an element of Q4_K or Q5_K has 4.625 or 5.625 bits instead of
4.5 or 5.5; the others take no more than in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import Packed
from tessera_triton.forms import E2M1, EXPONENTS, FRACTIONS, HALF, HALVES, IQ4, K_PAIRS, K_SIGNED, Form

STEP = 32
"""Inputs that are multiplied at a time."""


@dataclass(frozen=True)
class Block:
    """A type of block, and what its bytes are."""

    # inputs in a block
    elements: int
    # of a block
    bytes: int
    # what its parts become
    form: Form
    # codes uint8 [n, k], or int8 of 8 bits, of blocks [n, blocks, bytes]
    codes: Callable[[Tensor], Tensor]
    # scales as the form says, [n, groups]
    scale: Callable[[Tensor], Tensor]
    # numbers that scales are multiples of, [n, blocks], if they are
    larger: Callable[[Tensor], Tensor] | None = None

    def packed(self, blocks: Tensor) -> Packed:
        """The parts that kernels read. "weight": [turns, n, STEP], of codes as halves of bytes: a byte has two codes
        of one output, STEP inputs apart; "high": int32 [words, n], the bits beyond four; "scale" and "larger": int32
        [words, n]."""
        codes = self.codes(blocks)
        parts = {"scale": as_int32(self.scale(blocks))}
        if self.larger is not None:
            parts["larger"] = as_int32(self.larger(blocks))
        if not self.form.bits:
            return {"weight": _by_turn(codes), **parts}
        codes = F.pad(codes, (0, -codes.shape[1] % (2 * STEP)))
        halves = (codes & 15).unflatten(1, (-1, 2, STEP))
        if self.form.bits > 4:
            parts["high"] = _high_bits(codes >> 4, self.form.bits - 4)
        return {"weight": _by_turn((halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)), **parts}

    def packed_bytes(self, n: int, k: int) -> int:
        """Of the parts."""
        turns, (each, larger) = -(-k // (2 * STEP)), _BYTES[self.form.scaling]
        codes = turns * STEP if self.form.bits else k
        words = -(-k // self.form.group * each // 4) - (-k // self.elements * larger // 4)
        words += turns * 2 * STEP * max(self.form.bits - 4, 0) // 32
        return n * (codes + 4 * words)


_BYTES: Mapping[int, tuple[int, int]] = MappingProxyType(
    {
        HALF.value: (2, 0),
        HALVES.value: (4, 0),
        K_PAIRS.value: (2, 4),
        K_SIGNED.value: (1, 2),
        EXPONENTS.value: (1, 0),
        FRACTIONS.value: (1, 0),
    }
)
"""By scaling: what a group has of an output, and what a block has."""


def as_int32(numbers: Tensor) -> Tensor:
    """[n, numbers] of 1, 2 or 4 bytes -> int32 [words, n], zeros after the last one."""
    stored = numbers.contiguous().view(torch.uint8)
    return F.pad(stored, (0, -stored.shape[1] % 4)).view(torch.int32).T.contiguous()


def _by_turn(bytes_: Tensor) -> Tensor:
    """[n, turns * STEP] -> [turns, n, STEP], so that a program reads what it multiplies at a time in one stretch."""
    return bytes_.unflatten(1, (-1, STEP)).transpose(0, 1).contiguous()


def _high_bits(bits: Tensor, width: int) -> Tensor:
    """[n, k] of `width` bits -> int32 [words, n], the first input in the lowest bits."""
    high = bits.unflatten(1, (-1, 32 // width))
    words = torch.zeros_like(high[..., 0], dtype=torch.int32)
    for place in range(high.shape[-1]):
        words |= high[..., place].to(torch.int32) << place * width
    return words.T.contiguous()


# ---- what the bytes of a block are


def _q5_0(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])


def _q5_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])


def _q5_k(blocks: Tensor) -> Tensor:
    """Bytes: as of Q4_K, with 32 of fifth bits before the others."""
    return _nibbles(blocks[..., 48:], 32) | _planes(blocks[..., 16:48], 1).flatten(1) << 4


def _q6_k(blocks: Tensor) -> Tensor:
    """Bytes: 128 of low four bits, 64 of high two bits, 16 scales, the scale of all."""
    high = _planes(blocks[..., 128:192].unflatten(-1, (2, 32)), 2).flatten(1)
    return _nibbles(blocks[..., :128], 64) | high << 4


def _half(start: int) -> Callable[[Tensor], Tensor]:
    """The float16 at a byte of each block."""
    return lambda blocks: blocks[..., start : start + 2].contiguous().view(torch.float16).squeeze(-1)


def _two_halves(blocks: Tensor) -> Tensor:
    """The first two float16 of each block, as int32."""
    return blocks[..., :4].contiguous().view(torch.int32).squeeze(-1)


def _six_bits(blocks: Tensor) -> Tensor:
    """Of Q4_K and Q5_K: scales in the low byte of an int16, minimums in the high one. The first four of both are in
    the low six bits of four bytes; the others have their low four bits in the last bytes, and their high two above
    those of the first."""
    first, second, last = blocks[..., 4:16].split(4, dim=-1)
    scales = torch.cat((first & 63, last & 15 | first >> 2 & 48), dim=-1)
    minimums = torch.cat((second & 63, last >> 4 | second >> 2 & 48), dim=-1)
    return torch.stack((scales, minimums), dim=-1).view(torch.int16).flatten(1)


def _nibbles(packed: Tensor, together: int = 16) -> Tensor:
    """The low halves of so many bytes, then the high ones: [n, blocks, bytes] -> [n, k]."""
    bytes_ = packed.unflatten(-1, (-1, together))
    return torch.stack((bytes_ & 15, bytes_ >> 4), dim=-2).flatten(1)


def _planes(packed: Tensor, width: int) -> Tensor:
    """The lowest bits of all bytes, then the next ones: [..., bytes] -> [..., 8 / width, bytes]."""
    return torch.stack([packed >> at & (1 << width) - 1 for at in range(0, 8, width)], dim=-2)


def _fifth_bits(packed: Tensor) -> Tensor:
    """32 bits of each block, in their place above four: [n, blocks, 4] -> [n, k]."""
    return torch.stack([packed >> at & 1 for at in range(8)], dim=-1).flatten(1) << 4


def _four_bits(start: int, together: int = 16) -> Callable[[Tensor], Tensor]:
    return lambda blocks: _nibbles(blocks[..., start:], together)


def _eight_bits(start: int, stop: int) -> Callable[[Tensor], Tensor]:
    """Numbers with a sign at some bytes of each block, int8 [n, numbers]."""
    return lambda blocks: blocks[..., start:stop].flatten(1).view(torch.int8)


def _bytes(stop: int) -> Callable[[Tensor], Tensor]:
    """The first bytes of each block, uint8 [n, numbers]."""
    return lambda blocks: blocks[..., :stop].flatten(1)


_PAIRS_OF_32 = Form(4, 0, 32, HALVES.value, early=True)
_K_OF_32 = Form(4, 0, 32, K_PAIRS.value, early=True)
_K_OF_16 = Form(6, 32, 16, K_SIGNED.value, early=True)
_MXFP4, _NVFP4 = Form(4, 0, 32, EXPONENTS.value, E2M1.value), Form(4, 0, 16, FRACTIONS.value, E2M1.value, early=True)

BLOCKS: Mapping[str, Block] = MappingProxyType(
    {
        "q4_0": Block(32, 18, Form(4, 8, 32, HALF.value), _four_bits(2), _half(0)),
        "q4_1": Block(32, 20, _PAIRS_OF_32, _four_bits(4), _two_halves),
        "q5_0": Block(32, 22, Form(5, 16, 32, HALF.value), _q5_0, _half(0)),
        "q5_1": Block(32, 24, replace(_PAIRS_OF_32, bits=5), _q5_1, _two_halves),
        "q8_0": Block(32, 34, Form(0, 0, 32, HALF.value), _eight_bits(2, 34), _half(0)),
        "q4_k": Block(256, 144, _K_OF_32, _four_bits(16, 32), _six_bits, _two_halves),
        "q5_k": Block(256, 176, replace(_K_OF_32, bits=5), _q5_k, _six_bits, _two_halves),
        "q6_k": Block(256, 210, _K_OF_16, _q6_k, _eight_bits(192, 208), _half(208)),
        "iq4_nl": Block(32, 18, Form(4, 0, 32, HALF.value, IQ4.value), _four_bits(2), _half(0)),
        "mxfp4": Block(32, 17, _MXFP4, _four_bits(1), _bytes(1)),
        "nvfp4": Block(64, 36, _NVFP4, _four_bits(4, 8), _bytes(4)),
    }
)
"""By the name of the encoding."""
