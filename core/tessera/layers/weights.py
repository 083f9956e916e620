"""What a layer asks of the loader: parts of checkpoint tensors, how to join them, and how to prepare the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.ops import Attached, Packed
from tessera.platform.quantization import Part

Join = Sequence[Part]
"""Parts to concatenate along the first dimension."""


class Parameter:
    """Holds a weight. parts: by name ("weight", "bias"), the parts to join; with `stacked`, a list of joins to stack.
    value is None until fill(). attached: what a feature attached to its product, if any."""

    def __init__(
        self,
        parts: Mapping[str, Join | Sequence[Join]],
        prepare: Callable[[dict[str, Tensor], Packed | None], Packed],
        *,
        stacked: bool = False,
    ) -> None:
        self.parts, self.stacked = parts, stacked
        self._prepare = prepare
        self.value: Packed | None = None
        self.attached: Any = None

    def joins(self, name: str) -> Sequence[Join]:
        joins: Any = self.parts[name]
        return joins if self.stacked else (joins,)

    def fill(self, raw: dict[str, Tensor]) -> None:
        """Prepares the joined tensors and keeps them; entries of raw may be removed. A second fill writes into the
        tensors of the first."""
        packed = self._prepare(raw, self.value)
        self.value = packed if self.attached is None else Attached(packed, self.attached)

    def attach(self, attached: Any) -> None:
        """Call it before the first fill()."""
        assert self.value is None, "the weight is loaded already"
        self.attached = attached

    def exchange(self, tensors: dict[str, Tensor]) -> None:
        """Holds these, by part, instead of what it was filled with. What a feature attached stays."""
        self.value = tensors if self.attached is None else Attached(tensors, self.attached)

    @property
    def packed(self) -> Packed:
        assert self.value is not None, "weights are not loaded"
        return self.value

    @property
    def tensor(self) -> Tensor:
        weight: Tensor = self.packed["weight"]
        return weight

    @property
    def nbytes(self) -> int:
        return sum(int(tensor.nbytes) for tensor in self.packed.values())


def count_numbers(parameters: Sequence[Parameter]) -> int:
    """The number of checkpoint elements that the parameters hold. A part used by several of them counts once."""
    return sum(part.numbers for part in _parts_of(parameters))


def count_bytes(parameters: Sequence[Parameter], dtype: str) -> int:
    """The bytes that they take as a checkpoint stores them. dtype: of the parts that name none."""
    return sum(prod(part.shape) * torch_dtype(part.dtype or dtype).itemsize for part in _parts_of(parameters))


def _parts_of(parameters: Sequence[Parameter]) -> set[Part]:
    return {
        part for parameter in parameters for name in parameter.parts for join in parameter.joins(name) for part in join
    }
