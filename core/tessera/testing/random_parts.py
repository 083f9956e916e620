"""Random weights in the parts of a scheme."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from tessera.errors import PlatformError
from tessera.platform.quantization import Scheme
from tessera.quantization.rounding import quantised

SCALES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "q4_0": (0,),
        "q4_1": (0, 2),
        "q5_0": (0,),
        "q5_1": (0, 2),
        "q8_0": (0,),
        "q2_k": (80, 82),
        "q3_k": (108,),
        "q4_k": (0, 2),
        "q5_k": (0, 2),
        "q6_k": (208,),
        "iq4_nl": (0,),
        "iq4_xs": (0,),
    }
)
"""By encoding, where in a block the float16s are that all its numbers are multiples of: scales, and those of
minimums."""

_BYTES: Mapping[str, int] = MappingProxyType({"mxfp4": 1, "nvfp4": 4})
"""By encoding, how many bytes at the beginning of a block are scales: a power of two, or floats of 7 bits."""


def random_parts(weight: Tensor, scheme: Scheme, random: torch.Generator) -> dict[str, Tensor]:
    """A weight [..., n, k] rounded to a scheme. For an encoding: random blocks, which have all codes, for
    numbers of about the same size."""
    if scheme.weight.encoding is None:
        return quantised(weight, scheme)
    return {"weight": random_blocks(scheme, weight.shape, random)}


def random_blocks(scheme: Scheme, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Blocks of an encoding for a weight of this shape, uint8 [..., n, k / elements, bytes], with all codes and signs,
    for numbers with a standard deviation of about k^-0.5. Raises PlatformError for an encoding whose scales are
    unknown here."""
    encoding, name = scheme.weight.encoding, scheme.weight.dtype
    if encoding is None or name not in (*SCALES, *_BYTES):
        raise PlatformError(f"there are no random blocks of '{name}'; take one of {', '.join((*SCALES, *_BYTES))}.")
    *lead, k = shape
    blocks = torch.randint(0, 256, (*lead, k // encoding.elements, encoding.bytes), generator=random, dtype=torch.uint8)
    _put_scales(blocks, name, 1.0, random)
    size = encoding.dequantize({"weight": blocks}).std().item() * math.sqrt(k)
    _put_scales(blocks, name, 1.0 / size, random)
    return blocks


def _put_scales(blocks: Tensor, name: str, factor: float, random: torch.Generator) -> None:
    """Random scales of about `factor`."""
    size = _BYTES.get(name, 1)
    for start in SCALES.get(name, (0,)):
        scales = factor * (0.5 + torch.rand(*blocks.shape[:-1], size, generator=random))
        if name == "mxfp4":
            blocks[..., :size] = (scales.log2().round() + 127).to(torch.uint8)
        elif name == "nvfp4":
            blocks[..., :size] = scales.to(torch.float8_e4m3fn).view(torch.uint8)
        else:
            blocks[..., start : start + 2] = scales.half().view(torch.uint8)
