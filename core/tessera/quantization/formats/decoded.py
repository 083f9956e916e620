"""What the formats have in common whose weights are decoded at load: integers packed into 32-bit words, with scales and
zero points for groups of inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tessera.errors import ModelError, printable
from tessera.platform.device import Tensor
from tessera.platform.quantization import Part
from tessera.quantization.formats.fields import Fields

WORD = 32
"""Bits of a word."""


def words(values: int, bits: int) -> int:
    """How many words so many values are packed into."""
    return -(-values * bits // WORD)


def span(bounds: tuple[int, int], bits: int) -> tuple[tuple[int, int], int]:
    """The words that hold the values from a first to a last one, and how many values these words hold before them. The
    words begin where a value does."""
    per = WORD // _common(bits)  # values after which a value begins with a word again
    first = bounds[0] // per * per
    return (first * bits // WORD, words(bounds[1], bits)), bounds[0] - first


def _common(bits: int) -> int:
    """The largest power of two that divides both the bits of a value and those of a word."""
    return bits & -bits


def unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """The values, of at most 8 bits, of int32 words along a dimension, as uint8: the first in the lowest bits. A value
    may lie in two words."""
    import torch

    packed = packed.movedim(dim, 0)
    mask = (1 << bits) - 1
    if WORD % bits == 0:
        per = WORD // bits
        values = torch.empty(len(packed), per, *packed.shape[1:], dtype=torch.uint8, device=packed.device)
        for place in range(per):
            values[:, place] = (packed >> (bits * place) & mask).to(torch.uint8)
        return values.flatten(0, 1).movedim(0, dim)
    wide = packed.to(torch.int64) & 0xFFFFFFFF
    begins = torch.arange(len(packed) * WORD // bits, device=packed.device) * bits
    word, shift = begins // WORD, (begins % WORD).view(-1, *[1] * (packed.dim() - 1))
    following = wide[(word + 1).clamp_max(max(len(packed) - 1, 0))]
    values = wide[word] >> shift | following << (WORD - shift)
    return (values & mask).to(torch.uint8).movedim(0, dim)


def group_size(config: Fields, k: int, name: str, size: int) -> int:
    """The inputs that share a scale, of k; -1 for all. Raises ModelError if they do not divide."""
    size = k if size == -1 else size
    if k % size:
        raise ModelError(f"{config.where}.group_size ({size}) does not divide the {k} inputs of '{name}'.")
    return size


def read_group_size(config: Fields, name: str = "group_size") -> int:
    value = config.get(name, -1)
    if type(value) is not int or not (value == -1 or 1 <= value <= 1 << 20):
        raise config.unsupported(name, "it can be -1 or 1 to 1,048,576", value)
    return value


def part_of(weight: Part, suffix: str, whole: Sequence[int], **differs: Any) -> Part:
    """A tensor beside "NAME.weight", under each name that the weight may have."""
    name, *also = (f"{one.removesuffix('.weight')}.{suffix}" for one in (weight.name, *weight.also))
    return Part(name, tuple(whole), also=tuple(also), **differs)


def bounds_of(weight: Part) -> tuple[tuple[int, int], tuple[int, int]]:
    """The rows and columns of a shard that the weight has, as (start, stop)."""
    n, k = weight.whole
    start, stop = weight.rows or (0, n)
    return (min(start, n), min(stop, n)), weight.columns or (0, k)


def finite(scales: Tensor, name: str, *, zero: bool = True) -> Tensor:
    """The same. name: of the tensor, for messages. zero: whether there may be zeros. Raises ModelError for infinite
    scales, and for what is not a number."""
    if not scales.is_meta and not (bool(scales.isfinite().all()) and (zero or bool(scales.all()))):
        what = "not finite" if zero else "zero or not finite"
        raise ModelError(f"'{printable(name)}' has scales that are {what}; use another copy.")
    return scales


def groups_of_inputs(g_idx: Tensor, groups: int, name: str) -> Tensor:
    """The same as int64. name: of the tensor. Raises ModelError for a group that is not there."""
    import torch

    indices = g_idx.to(torch.int64)
    if not indices.is_meta and not 0 <= int(indices.min()) <= int(indices.max()) < groups:
        raise ModelError(f"'{printable(name)}' names a group that is not among {groups}; use another copy.")
    return indices


def matches_name(pattern: str, name: str) -> bool:
    """Whether a name has a part, or several that follow one another, that are the pattern."""
    return re.search(rf"(?:^|\.){re.escape(pattern)}(?:\.|$)", name) is not None
