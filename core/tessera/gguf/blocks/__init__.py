"""The types that GGUF stores tensors in: numbers one by one, or blocks of them with common scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tessera.gguf.blocks.bits import Bytes, Floats
from tessera.gguf.blocks.fp4 import iq4_nl, iq4_xs, mxfp4, nvfp4
from tessera.gguf.blocks.iq import iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs
from tessera.gguf.blocks.k_quants import q2_k, q3_k, q4_k, q5_k, q6_k, q8_k
from tessera.gguf.blocks.legacy import q4_0, q4_1, q5_0, q5_1, q8_0
from tessera.gguf.blocks.plain import bf16, number
from tessera.gguf.blocks.ternary import tq1_0, tq2_0

_AT_A_TIME = 1 << 14
"""Values that are decoded at a time: what lies between the steps stays in the processor's cache."""


_EXPONENT = np.uint16(0x7C00)
"""The bits of a float16 that are all set in infinities and in what is no number."""


@dataclass(frozen=True)
class BlockType:
    """How a tensor is stored: each row is a number of whole blocks."""

    # As llama.cpp writes it, such as Q4_K.
    name: str
    # Numbers in a block.
    elements: int
    # Bytes of a block.
    bytes: int
    # The values of a few blocks, uint8 [n, bytes], as numbers [n, ...] that are elements in all.
    decode: Callable[[Bytes], NDArray[Any]] = field(repr=False)
    # Where a block has its float16 numbers, scales and minima: the first byte, and the one after the last.
    halves: tuple[int, int] = field(default=(0, 0), repr=False)

    def dequantize(self, blocks: Bytes) -> Floats:
        """The values of blocks, as llama.cpp decodes them. uint8 [n, bytes] to float32 [n, elements]."""
        values = np.empty((len(blocks), self.elements), np.float32)
        step = _AT_A_TIME // self.elements
        with np.errstate(all="ignore"):  # a scale can be infinite or no number
            for start in range(0, len(blocks), step):
                few = self.decode(blocks[start : start + step])
                values[start : start + step] = few.reshape(-1, self.elements)
        return values

    def is_finite(self, blocks: Bytes) -> bool:
        """Whether the float16 numbers of blocks, uint8 [..., bytes], are all finite."""
        bits = np.ascontiguousarray(blocks[..., slice(*self.halves)]).view("<u2")
        return not bool((bits & _EXPONENT == _EXPONENT).any())


BLOCK_TYPES: Mapping[int, BlockType] = MappingProxyType(
    {
        0: BlockType("F32", 1, 4, number("<f4")),
        1: BlockType("F16", 1, 2, number("<f2")),
        2: BlockType("Q4_0", 32, 18, q4_0, (0, 2)),
        3: BlockType("Q4_1", 32, 20, q4_1, (0, 4)),
        6: BlockType("Q5_0", 32, 22, q5_0, (0, 2)),
        7: BlockType("Q5_1", 32, 24, q5_1, (0, 4)),
        8: BlockType("Q8_0", 32, 34, q8_0, (0, 2)),
        10: BlockType("Q2_K", 256, 84, q2_k, (80, 84)),
        11: BlockType("Q3_K", 256, 110, q3_k, (108, 110)),
        12: BlockType("Q4_K", 256, 144, q4_k, (0, 4)),
        13: BlockType("Q5_K", 256, 176, q5_k, (0, 4)),
        14: BlockType("Q6_K", 256, 210, q6_k, (208, 210)),
        15: BlockType("Q8_K", 256, 292, q8_k),
        16: BlockType("IQ2_XXS", 256, 66, iq2_xxs, (0, 2)),
        17: BlockType("IQ2_XS", 256, 74, iq2_xs, (0, 2)),
        18: BlockType("IQ3_XXS", 256, 98, iq3_xxs, (0, 2)),
        19: BlockType("IQ1_S", 256, 50, iq1_s, (0, 2)),
        20: BlockType("IQ4_NL", 32, 18, iq4_nl, (0, 2)),
        21: BlockType("IQ3_S", 256, 110, iq3_s, (0, 2)),
        22: BlockType("IQ2_S", 256, 82, iq2_s, (0, 2)),
        23: BlockType("IQ4_XS", 256, 136, iq4_xs, (0, 2)),
        24: BlockType("I8", 1, 1, number("i1")),
        25: BlockType("I16", 1, 2, number("<i2")),
        26: BlockType("I32", 1, 4, number("<i4")),
        27: BlockType("I64", 1, 8, number("<i8")),
        28: BlockType("F64", 1, 8, number("<f8")),
        29: BlockType("IQ1_M", 256, 56, iq1_m),
        30: BlockType("BF16", 1, 2, bf16),
        34: BlockType("TQ1_0", 256, 54, tq1_0, (52, 54)),
        35: BlockType("TQ2_0", 256, 66, tq2_0, (64, 66)),
        39: BlockType("MXFP4", 32, 17, mxfp4),
        40: BlockType("NVFP4", 64, 36, nvfp4),
    }
)
"""By the number that stands for each in a file."""

OTHER_TYPES: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        9: "Q8_1",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
        41: "Q1_0",
    }
)
"""Names of types that are not read: withdrawn, for activations only, or too rare."""
