"""The matrices of one expert in two tensors that have those of all experts of a layer: NAME.gate_up_proj [experts, 2
inner, hidden], gates first, and NAME.down_proj [experts, hidden, inner], or both with their last two axes exchanged;
or NAME.input_linear.weight and NAME.output_linear.weight of the same shapes (Granite)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from torch import Tensor

_STACKED = (
    (".experts.gate_up_proj", ".experts.down_proj"),
    (".input_linear.weight", ".output_linear.weight"),
)
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
    # whether the tensor has columns before rows
    exchanged: bool = False


def expert_places(names: Iterable[str], shape_of: Callable[[str], Sequence[int]]) -> Iterator[tuple[str, ExpertPlace]]:
    """The matrices that a checkpoint has together, by the names that they have where each is stored alone. names: of
    its tensors."""
    known = set(names)
    for wide, back in _STACKED:
        bases = [name.removesuffix(wide) for name in known if name.endswith(wide)]
        for base in bases:
            if f"{base}{back}" in known:
                yield from _places(base, f"{base}{wide}", f"{base}{back}", shape_of)


def _places(
    base: str, gate_up: str, down: str, shape_of: Callable[[str], Sequence[int]]
) -> Iterator[tuple[str, ExpertPlace]]:
    """Those in one pair of tensors; none if each is a single matrix."""
    wide, back = shape_of(gate_up), shape_of(down)
    if len(wide) != 3 or len(back) != 3:
        return
    exchanged = wide[2] != back[1]
    for expert in range(wide[0]):
        for half, part in enumerate(("gate", "up")):
            place = ExpertPlace(gate_up, expert, half, 2, exchanged)
            yield f"{base}.experts.{expert}.{part}_proj.weight", place
        yield f"{base}.experts.{expert}.down_proj.weight", ExpertPlace(down, expert, exchanged=exchanged)


class Expert:
    """An expert's matrix, read as a slice of safetensors is."""

    def __init__(self, stacked: Any, place: ExpertPlace) -> None:
        """stacked: the slice of the whole tensor."""
        self.stacked, self.place = stacked, place
        _, *sizes = stacked.get_shape()
        rows, self.columns = reversed(sizes) if place.exchanged else sizes
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
        within = slice(first + start, first + stop)
        axes = (columns, within) if self.place.exchanged else (within, columns)
        read: Tensor = self.stacked[expert : expert + 1, *axes][0]
        return read.T.contiguous() if self.place.exchanged else read
