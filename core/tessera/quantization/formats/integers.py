"""Integers of 4 or 8 bits in groups of inputs, with zero points or without, that stay as a checkpoint stores them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tessera.platform.device import Tensor
from tessera.platform.quantization import Part, QuantSpec, Scheme, StoredWeight, TensorSpec, Unpacking
from tessera.quantization.formats.decoded import bounds_of, finite, part_of

BITS = (4, 8)
"""Of the integers that a Scheme has."""


@dataclass(frozen=True)
class InputGroups:
    """The groups that a shard of inputs, from `first` to before `last`, overlaps."""

    first: int
    last: int
    # inputs of a group in the checkpoint
    size: int

    @property
    def inner(self) -> int:
        """The inputs of a group of the shard, whose groups have one size: its ends may cut those of the checkpoint."""
        return math.gcd(self.size, self.first, self.last - self.first)

    @property
    def bounds(self) -> tuple[int, int]:
        """Of groups in the checkpoint."""
        return self.first // self.size, -(-self.last // self.size)

    def spread(self, values: Tensor) -> Tensor:
        """Values of these groups, [n, groups], as those of the shard's own: [n, inputs / inner]."""
        begin, count = self.first % self.size // self.inner, (self.last - self.first) // self.inner
        return values.repeat_interleave(self.size // self.inner, dim=1)[:, begin : begin + count]


def integer_scheme(bits: int, group: int, scale: str, *, symmetric: bool) -> Scheme:
    """scale: the dtype of scales."""
    parts = {
        "weight": TensorSpec("uint8", (1, 2)) if bits == 4 else TensorSpec("int8", (1, 1)),
        "scale": TensorSpec(scale, (1, group)),
    }
    if not symmetric:
        parts["zero_point"] = TensorSpec("int8", (1, group))
    return Scheme(QuantSpec(f"int{bits}", "group", group, symmetric, scale), parts=parts)


def stored_integers(
    weight: Part,
    bits: int,
    size: int,
    elements: tuple[Part, Callable[[Tensor], Tensor]],
    points: tuple[Part, Callable[[Tensor], Tensor]] | None,
) -> StoredWeight | Part:
    """weight: a shard of "NAME.weight" [n, k] with a decoding. The checkpoint has NAME.scales, float16 [k / size, n].
    elements: what to read, and a function that makes uint8 [n, k * bits / 8] of it: the values, 2^(bits - 1) more than
    they are, those of 4 bits two to a byte with the first in the low half. points: what to read of the zero points, and
    a function that makes uint8 [k / size, n] of it, likewise; None: they are 0. Each is for the shard's own rows and
    groups, without rows past the last. Returns the weight to be decoded if a Scheme has no such integers."""
    first, last = weight.columns or (0, weight.whole[1])
    groups, rows = InputGroups(first, last, size), weight.shape[0]
    if bits not in BITS or groups.inner * bits % 8:
        return weight

    def whole(packed: Tensor) -> Tensor:
        import torch

        stored = _padded(elements[1](packed), rows)
        return stored if bits == 4 else (stored ^ 128).view(torch.int8)

    parts = {
        "weight": replace(elements[0], unpacking=Unpacking(whole, rows, rows * (last - first))),
        "scale": _scales(weight, groups, 1 / (math.sqrt(weight.whole[1]) * (1 << bits - 1))),
    }
    if points is not None:
        read = points[1]

        def zero(packed: Tensor) -> Tensor:
            import torch

            middle = read(packed).to(torch.int16) - (1 << bits - 1)
            return _padded(groups.spread(middle.to(torch.int8).T), rows)

        parts["zero_point"] = replace(points[0], unpacking=Unpacking(zero, rows))
    return StoredWeight(integer_scheme(bits, groups.inner, _SCALE, symmetric=points is None), parts, weight)


_SCALE = "float16"


def _scales(weight: Part, groups: InputGroups, fill: float) -> Part:
    (n, k), (rows, _), length = weight.whole, bounds_of(weight), weight.shape[0]
    part = part_of(weight, "scales", (k // groups.size, n), rows=groups.bounds, columns=rows, dtype=_SCALE, fill=fill)

    def spread(values: Tensor) -> Tensor:
        return _padded(groups.spread(finite(values, part.name).T), length)

    return replace(part, unpacking=Unpacking(spread, length))


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """With rows of zeros after those that there are, such as a vocabulary's beyond the last."""
    import torch

    return torch.cat((tensor, tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])))
