"""The tensors of a GGUF file, and transformers' weights that each is made of: the tables of the architectures, read the
other way round."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.errors import ModelError, printable
from tessera.gguf.architectures.architecture import GgufArchitecture
from tessera.gguf.tensors import Order, rows_in_pairs

_EXPERT = re.compile(r"\.(\d{1,4})\.")


@dataclass(frozen=True)
class WrittenTensor:
    """One tensor of the file."""

    # GGUF's
    name: str
    # names of the weights it is made of; several are stacked
    sources: Sequence[str]
    # [rows]: where each of transformers' rows is in the file; None: where it was
    row_order: Order | None = None
    # what is added to the values
    offset: float = 0.0


def written_tensors(
    architecture: GgufArchitecture, shapes: Mapping[str, Sequence[int]], heads: Mapping[str, int]
) -> Sequence[WrittenTensor]:
    """shapes: of the model's weights by name. heads: of queries and keys, by the names attn_q and attn_k. Raises
    ModelError for a weight that the architecture has no name for."""
    sources: dict[str, list[str]] = {}
    for name in sorted(shapes, key=_in_order):
        own = _own_name(architecture, name)
        if own is None:
            raise ModelError(f"the model has a weight '{printable(name, 100)}', which a GGUF file has no name for.")
        sources.setdefault(own, []).append(name)
    return [_tensor(architecture, own, names, shapes[names[0]], heads) for own, names in sources.items()]


def _tensor(
    architecture: GgufArchitecture, name: str, sources: Sequence[str], shape: Sequence[int], heads: Mapping[str, int]
) -> WrittenTensor:
    short = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    order = None
    if architecture.paired_rows and short in heads:
        order = rows_in_pairs(name, shape[0], heads[short])
    shifted = short.endswith("norm") and name.endswith(".weight")
    return WrittenTensor(name, tuple(sources), order, architecture.norm_offset if shifted else 0.0)


def _own_name(architecture: GgufArchitecture, name: str) -> str | None:
    """GGUF's name of a weight."""
    for own, theirs in architecture.ends.items():
        if theirs == name:
            return own
    before, _, rest = name.removeprefix(f"{architecture.layers}.").partition(".")
    if not before.isdecimal() or not name.startswith(f"{architecture.layers}."):
        return None
    rest = _EXPERT.sub(".{}.", rest, count=1)
    module, _, ending = rest.rpartition(".")
    for own, theirs in architecture.tensors.items():
        if theirs == rest:
            return f"blk.{before}.{own}"
        if theirs == module:
            return f"blk.{before}.{own}.{ending}"
    return None


def _in_order(name: str) -> tuple[Any, ...]:
    """Layers and experts by their numbers."""
    return tuple(int(part) if part.isdecimal() else -1 for part in name.split(".")), name


def values_of(tensor: WrittenTensor, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """values: of a source, float32 -> as the file has them."""
    if tensor.offset:
        values = values + np.float32(tensor.offset)
    if tensor.row_order is None:
        return values
    moved = np.empty_like(values)
    moved[tensor.row_order] = values
    return moved
