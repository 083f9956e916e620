"""What a layer asks of the loader: parts of checkpoint tensors, how they are joined, and who prepares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tessera.platform.ops import Packed
from tessera.platform.quantization import Part

Join = Sequence[Part]
"""Parts that follow each other along the first dimension."""


class Parameter:
    """A place for a weight. parts: by name ("weight", "bias"), the parts to join; `stacked`: a list of joins, stacked.
    value is None until fill()."""

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

    def joins(self, name: str) -> Sequence[Join]:
        joins: Any = self.parts[name]
        return joins if self.stacked else (joins,)

    def fill(self, raw: dict[str, Tensor]) -> None:
        """Prepares the joined tensors and keeps them; it may take them out of raw. A second fill writes into the
        tensors of the first."""
        self.value = self._prepare(raw, self.value)

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
    """Of the checkpoint, that parameters hold; a part that several take counts once."""
    parts = {
        part for parameter in parameters for name in parameter.parts for join in parameter.joins(name) for part in join
    }
    return sum(part.numbers for part in parts)
