"""Weights rounded into blocks, as --quantization does at load: what decodes them is their definition (gguf/blocks).
Each encoder receives float32 [blocks, elements] and returns uint8 [blocks, bytes]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

_AT_A_TIME = 1 << 18
"""Elements that are rounded at a time; they fit in a core's own cache."""


def encode(name: str, weight: Tensor) -> Tensor:
    """weight [..., n, k] of floats -> uint8 [..., n, k / elements, bytes] of the type of block of that name, such as
    "q4_k". Raises KeyError for a type without an encoder."""
    elements, size, encoder = ENCODERS[name]
    *lead, k = weight.shape
    rows = weight.reshape(-1, k)
    stored = weight.new_empty(len(rows), k // elements, size, dtype=torch.uint8)
    step = max(_AT_A_TIME // k, 1)
    for start in range(0, 0 if rows.is_meta else len(rows), step):
        few = rows[start : start + step].float().reshape(-1, elements)
        stored[start : start + step] = encoder(few).view(-1, k // elements, size)
    return stored.view(*lead, k // elements, size)


def _symmetric(limit: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Scale [blocks, 2] bytes, and codes of -limit to limit - 1 with limit added. What is largest in magnitude becomes
    -limit, which has no positive counterpart; the scale is then the one that is nearest to all for these codes."""
    least, most = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    first = torch.where(most > -least, most, least) / -limit
    rounded = (values / _divisor(first)).round_().clamp_(-limit, limit - 1)
    scale = ((rounded * values).sum(-1, keepdim=True) / _divisor(rounded.square().sum(-1, keepdim=True))).half()
    return scale.view(torch.uint8), _codes(values / _divisor(scale.float()) + limit, 2 * limit - 1)


def _affine(levels: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum [blocks, 4] bytes, and codes of 0 to levels. The codes reach from the least value to the
    largest one; scale and minimum are then those that are nearest to all for these codes."""
    least, most = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    first = (most - least) / levels
    rounded = ((values - least) / _divisor(first)).round_()
    mean, middle = rounded.mean(-1, keepdim=True), values.mean(-1, keepdim=True)
    apart = rounded - mean
    slope = (apart * values).sum(-1, keepdim=True) / _divisor(apart.square().sum(-1, keepdim=True))
    scale, minimum = slope.half(), (middle - slope * mean).half()
    codes = _codes((values - minimum.float()) / _divisor(scale.float()), levels)
    return torch.cat((scale, minimum), -1).view(torch.uint8), codes


def _q4_0(values: Tensor) -> Tensor:
    scale, codes = _symmetric(8, values)
    return torch.cat((scale, _halves(codes)), -1)


def _q4_1(values: Tensor) -> Tensor:
    head, codes = _affine(15, values)
    return torch.cat((head, _halves(codes)), -1)


def _q5_0(values: Tensor) -> Tensor:
    scale, codes = _symmetric(16, values)
    return torch.cat((scale, _bits(codes >> 4), _halves(codes & 15)), -1)


def _q5_1(values: Tensor) -> Tensor:
    head, codes = _affine(31, values)
    return torch.cat((head, _bits(codes >> 4), _halves(codes & 15)), -1)


def _q8_0(values: Tensor) -> Tensor:
    scale = (values.abs().amax(-1, keepdim=True) / 127).half()
    codes = (values / _divisor(scale.float())).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat((scale.view(torch.uint8), codes.view(torch.uint8)), -1)


def _q4_k(values: Tensor) -> Tensor:
    head, codes = _super_block(15, values)
    pairs = codes.view(-1, 4, 2, 32)
    return torch.cat((head, (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)), -1)


def _q5_k(values: Tensor) -> Tensor:
    head, codes = _super_block(31, values)
    pairs, fifth = (codes & 15).view(-1, 4, 2, 32), codes >> 4
    high = sum((fifth[:, group] << group for group in range(8)), torch.zeros_like(fifth[:, 0]))
    return torch.cat((head, high, (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)), -1)


def _super_block(levels: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Of eight groups of 32: 16 bytes of scales and minimums, and codes [blocks, 8, 32] of 0 to levels. Zero is always
    between a group's least and largest value, because minimums are not negative as they are stored."""
    groups = values.view(-1, 8, 32)
    minimum = -groups.amin(-1).clamp_max_(0)
    scale = (groups.amax(-1).clamp_min_(0) + minimum) / levels
    unit, depth = (part.amax(-1, keepdim=True).div_(63).half() for part in (scale, minimum))
    scales = _codes(scale / _divisor(unit.float()), 63)
    minimums = _codes(minimum / _divisor(depth.float()), 63)
    step, offset = unit.float() * scales, depth.float() * minimums
    codes = _codes((groups + offset.unsqueeze(-1)) / _divisor(step).unsqueeze(-1), levels)
    return torch.cat((unit.view(torch.uint8), depth.view(torch.uint8), _six_bits(scales, minimums)), -1), codes


def _six_bits(scales: Tensor, minimums: Tensor) -> Tensor:
    """[blocks, 8] of 0 to 63 each -> [blocks, 12]: gguf/blocks/k_quants.py says where each bit lies."""
    first, second = (part[:, :4] | part[:, 4:] >> 4 << 6 for part in (scales, minimums))
    return torch.cat((first, second, scales[:, 4:] & 15 | (minimums[:, 4:] & 15) << 4), -1)


def _q6_k(values: Tensor) -> Tensor:
    groups = values.view(-1, 16, 16)
    least, most = groups.amin(-1), groups.amax(-1)
    scale = torch.where(most > -least, most, least) / -32
    unit = (scale.abs().amax(-1, keepdim=True) / 127).half()
    scales = (scale / _divisor(unit.float())).round_().clamp_(-127, 127)
    codes = _codes(groups / _divisor(unit.float() * scales).unsqueeze(-1) + 32, 63)
    low, high = (codes & 15).view(-1, 2, 2, 64), (codes >> 4).view(-1, 2, 4, 32)
    return torch.cat(
        (
            (low[:, :, 0] | low[:, :, 1] << 4).flatten(1),
            (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).flatten(1),
            scales.to(torch.int8).view(torch.uint8),
            unit.view(torch.uint8),
        ),
        -1,
    )


def _codes(scaled: Tensor, limit: int) -> Tensor:
    """Overwrites scaled."""
    return scaled.round_().clamp_(0, limit).to(torch.uint8)


def _divisor(scale: Tensor) -> Tensor:
    """1 where all values are 0, which then become codes of 0."""
    return torch.where(scale == 0, 1.0, scale)


def _halves(codes: Tensor) -> Tensor:
    """Codes [blocks, 32] of four bits -> [blocks, 16]: the first half in the low bits."""
    return codes[:, :16] | codes[:, 16:] << 4


def _bits(bits: Tensor) -> Tensor:
    """[blocks, 32] of 0 or 1 -> [blocks, 4], the first in the lowest bit."""
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.view(-1, 4, 8) * weights).sum(-1, dtype=torch.uint8)


ENCODERS: Mapping[str, tuple[int, int, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "q4_0": (32, 18, _q4_0),
        "q4_1": (32, 20, _q4_1),
        "q5_0": (32, 22, _q5_0),
        "q5_1": (32, 24, _q5_1),
        "q8_0": (32, 34, _q8_0),
        "q4_k": (256, 144, _q4_k),
        "q5_k": (256, 176, _q5_k),
        "q6_k": (256, 210, _q6_k),
    }
)
"""By the name of a type of block: its elements, its bytes and what rounds numbers into it."""
