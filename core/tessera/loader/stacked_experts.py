"""The weights of one expert in two tensors that have those of all experts of a layer: NAME.gate_up_proj [experts, 2
inner, hidden], gates first, and NAME.down_proj [experts, hidden, inner], or both with their last two axes exchanged;
or NAME.input_linear.weight and NAME.output_linear.weight of the same shapes (Granite).

With NAME.gate_up_proj_bias [experts, 2 inner] and NAME.down_proj_bias (gpt-oss), the axes are exchanged, and gates and
ups alternate. Instead of the matrices there may be NAME.gate_up_proj_blocks and _scales, whose axes are not exchanged,
and those of down_proj (quantization/formats/mxfp4.py)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType, MappingProxyType
from typing import Any

from torch import Tensor

_STACKED = (
    (".experts.gate_up_proj", ".experts.down_proj"),
    (".input_linear.weight", ".output_linear.weight"),
)
_BIAS = "_bias"
_ALTERNATING: Mapping[str, str] = MappingProxyType(
    {"": ".weight", _BIAS: ".bias", "_blocks": ".weight_blocks", "_scales": ".weight_scales"}
)
"""Of tensors that have biases beside them: what ends their names, and what ends those of an expert's."""
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
    # whether the parts' rows alternate; otherwise one part is behind the other
    alternating: bool = False

    def view(self, stored: Any) -> Expert:
        """The matrix, of the slice of its tensor."""
        return Expert(stored, self)


def expert_places(names: Iterable[str], shape_of: Callable[[str], Sequence[int]]) -> Iterator[tuple[str, ExpertPlace]]:
    """The matrices that a checkpoint has together, by the names that they have where each is stored alone. names: of
    its tensors."""
    known = set(names)
    wide, back = _STACKED[0]
    apart = {name.removesuffix(f"{wide}{_BIAS}") for name in known if name.endswith(f"{wide}{_BIAS}")}
    for base in apart:
        yield from _alternating_places(f"{base}.experts", known, shape_of)
    for wide, back in _STACKED:
        bases = {name.removesuffix(wide) for name in known if name.endswith(wide)}
        for base in bases - apart:
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


def _alternating_places(
    base: str, tensors: Container[str], shape_of: Callable[[str], Sequence[int]]
) -> Iterator[tuple[str, ExpertPlace]]:
    for kind, own in _ALTERNATING.items():
        wide, back, exchanged = f"{base}.gate_up_proj{kind}", f"{base}.down_proj{kind}", not kind
        if wide not in tensors or back not in tensors:
            continue
        for expert in range(min(len(shape_of(name)) > 1 and shape_of(name)[0] for name in (wide, back))):
            for half, part in enumerate(("gate", "up")):
                yield f"{base}.{expert}.{part}_proj{own}", ExpertPlace(wide, expert, half, 2, exchanged, True)
            yield f"{base}.{expert}.down_proj{own}", ExpertPlace(back, expert, exchanged=exchanged)


class Expert:
    """An expert's matrix, read as a slice of safetensors is."""

    def __init__(self, stacked: Any, place: ExpertPlace) -> None:
        """stacked: the slice of the whole tensor."""
        self.stacked, self.place = stacked, place
        _, *sizes = stacked.get_shape()
        rows, *self.others = reversed(sizes) if place.exchanged else sizes
        self.rows = rows // place.halves

    def get_shape(self) -> list[int]:
        return [self.rows, *self.others]

    def get_dtype(self) -> str:
        dtype: str = self.stacked.get_dtype()
        return dtype

    def __getitem__(self, index: Index) -> Tensor:
        rows, *others = index if isinstance(index, tuple) else (index,)
        start, stop, _ = (slice(None) if isinstance(rows, EllipsisType) else rows).indices(self.rows)
        place = self.place
        first, each = (0, place.halves) if place.alternating else (place.half * self.rows, 1)
        within = slice(first + each * start, first + each * stop)
        axes = (*(others or [slice(None)]), within) if place.exchanged else (within, *others)
        read: Tensor = self.stacked[place.expert : place.expert + 1, *axes][0]
        read = read.T if place.exchanged else read
        return (read[place.half :: each] if each > 1 else read).contiguous()
