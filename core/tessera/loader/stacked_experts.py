"""The matrices of one expert in tensors that have those of all experts of a layer: NAME.gate_up_proj [experts, 2 inner,
hidden], gates first, and NAME.down_proj [experts, hidden, inner]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from torch import Tensor

GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"
Index = EllipsisType | slice | tuple[slice, slice]


@dataclass(frozen=True)
class ExpertPlace:
    """Where an expert's matrix is."""

    # the tensor's name
    tensor: str
    # the number of the expert in it
    expert: int
    # which half of the expert's rows it is
    half: int = 0
    # into how many parts these are divided: 1 or 2
    halves: int = 1


def expert_places(name: str, shape: Sequence[int]) -> Iterator[tuple[str, ExpertPlace]]:
    """The matrices in a tensor, by the names that they have where each is stored alone; none if the tensor is not of
    experts. shape: of the tensor."""
    for ending, parts in ((GATE_UP, ("gate", "up")), (DOWN, ("down",))):
        if not name.endswith(ending) or len(shape) != 3:
            continue
        base = name.removesuffix(ending)
        for expert in range(shape[0]):
            for half, part in enumerate(parts):
                yield f"{base}.experts.{expert}.{part}_proj.weight", ExpertPlace(name, expert, half, len(parts))


class Expert:
    """An expert's matrix, read as a slice of safetensors is."""

    def __init__(self, stacked: Any, place: ExpertPlace) -> None:
        """stacked: the slice of the whole tensor."""
        self.stacked, self.place = stacked, place
        _, rows, self.columns = stacked.get_shape()
        self.rows = rows // place.halves

    def get_shape(self) -> list[int]:
        return [self.rows, self.columns]

    def get_dtype(self) -> str:
        dtype: str = self.stacked.get_dtype()
        return dtype

    def __getitem__(self, index: Index) -> Tensor:
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        start, stop, _ = (slice(None) if isinstance(rows, EllipsisType) else rows).indices(self.rows)
        first, expert = self.place.half * self.rows, self.place.expert
        read: Tensor = self.stacked[expert : expert + 1, first + start : first + stop, columns]
        return read[0]
