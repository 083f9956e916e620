"""The weights of a layer that has experts for text and as many others for images (ERNIE 4.5 VL), by the names that they
have were each kind alone, NAME.text_moe and NAME.vision_moe. In the files the experts are numbered throughout; the
routers NAME.gate.weight and NAME.gate.weight_1 are [hidden, experts]; their biases are the rows of
NAME.moe_statics.e_score_correction_bias [2, experts]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_SECOND = ".gate.weight_1"
_BIAS = "e_score_correction_bias"
_KINDS = ("text_moe", "vision_moe")


@dataclass(frozen=True)
class RenamedPlace:
    """The whole of a tensor that has another name."""

    # the tensor's name
    tensor: str

    def view(self, stored: Any) -> Any:
        """The weight, of the slice of its tensor."""
        return stored


@dataclass(frozen=True)
class ExchangedPlace(RenamedPlace):
    """A matrix stored with columns before rows."""

    def view(self, stored: Any) -> Any:
        return _Exchanged(stored)


@dataclass(frozen=True)
class RowPlace(RenamedPlace):
    """A vector that is a row of a matrix."""

    row: int

    def view(self, stored: Any) -> Any:
        return _Row(stored, self.row)


def modality_places(
    names: Iterable[str], shape_of: Callable[[str], Sequence[int]]
) -> Iterator[tuple[str, RenamedPlace]]:
    """The weights of such layers, by their names were each kind alone. names: of the checkpoint's tensors."""
    known = set(names)
    for base in [name.removesuffix(_SECOND) for name in known if name.endswith(_SECOND)]:
        routers, bias = (f"{base}.gate.weight", f"{base}{_SECOND}"), f"{base}.moe_statics.{_BIAS}"
        number = shape_of(routers[0])[-1]
        for kind, router in enumerate(routers):
            yield f"{base}.{_KINDS[kind]}.gate.weight", ExchangedPlace(router)
            yield f"{base}.{_KINDS[kind]}.gate.{_BIAS}", RowPlace(bias, kind)
        experts = f"{base}.experts."
        for name in known:
            if name.startswith(experts):
                expert, _, rest = name.removeprefix(experts).partition(".")
                kind, own = divmod(int(expert), number)
                if kind < len(_KINDS):
                    yield f"{base}.{_KINDS[kind]}.experts.{own}.{rest}", RenamedPlace(name)


class _Exchanged:
    """Read as a slice of safetensors is."""

    def __init__(self, stored: Any) -> None:
        self.stored = stored

    def get_shape(self) -> list[int]:
        return [*reversed(self.stored.get_shape())]

    def get_dtype(self) -> str:
        return str(self.stored.get_dtype())

    def __getitem__(self, index: Any) -> Tensor:
        whole: Tensor = self.stored[...]
        return whole.T[index].contiguous()


class _Row:
    """Read as a slice of safetensors is."""

    def __init__(self, stored: Any, row: int) -> None:
        self.stored, self.row = stored, row

    def get_shape(self) -> list[int]:
        return [*self.stored.get_shape()[1:]]

    def get_dtype(self) -> str:
        return str(self.stored.get_dtype())

    def __getitem__(self, index: Any) -> Tensor:
        whole: Tensor = self.stored[...]
        return whole[self.row][index].clone()
