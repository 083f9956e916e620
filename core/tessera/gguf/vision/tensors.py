"""The tensors of a tower's file under transformers' names.

llama.cpp's converters split what transformers joins: queries, keys and values, and the two frames of a patch. Some
older ones have the names of both matrices of an MLP exchanged.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tessera.errors import ModelError
from tessera.gguf.tensors import ComputedTensor, Floats, GgufWeight, NamedTensor, rows_in_pairs
from tessera.gguf.vision.fields import TowerFields
from tessera.gguf.vision.projectors import Projector

_LAYER = re.compile(r"v\.blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
_DEEPSTACK = re.compile(r"v\.deepstack\.(\d{1,4})\.(\w+\.(?:weight|bias))")
_PAIRED = ("attn_q", "attn_k")
_SWAPPED: Mapping[str, str] = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
_OTHER = frozenset({"v.token_embd.img_break"})
"""Tensors that the text model has too."""


@dataclass(frozen=True)
class UnusedTensor:
    """A vector that the tower's code has, of which no feature depends and which files therefore leave out: zeros."""

    source: str
    shape: tuple[int, ...]
    block: None = None

    def read(self, rows: slice, columns: slice = slice(None)) -> Iterator[Floats]:
        yield np.zeros((1, *self.shape), np.float32)[rows, columns]

    def read_blocks(self, rows: slice, columns: slice = slice(None)) -> None:
        raise AssertionError("it has none")


def tower_tensors(fields: TowerFields, projector: Projector) -> dict[str, GgufWeight]:
    """All weights by transformers' name. Raises ModelError for a tensor without a name, which the tower would not
    use."""
    parts: dict[str, list[NamedTensor]] = defaultdict(list)
    swapped = _swapped(fields)
    order = {name: number for number, name in enumerate(projector.tensors)}
    for name in sorted(fields.file.tensors, key=lambda name: (order.get(_own_name(name), len(order)), name)):
        if name in _OTHER:
            continue
        named = _named(name, fields, projector, swapped)
        if named is None:
            raise ModelError(
                f"the tower's file has a tensor '{name[:80]}', which towers of the type '{fields.projector}' have not "
                "as far as is known here; it is not served, as its answers might be wrong."
            )
        parts[named].append(_part(name, fields, projector))
    made = {named: _joined(own, projector.dimensions.get(named)) for named, own in parts.items()}
    width = (fields.size("embedding_length"),)
    return {**{name: UnusedTensor(name, width) for name in projector.unused}, **made}


def _own_name(name: str) -> str:
    """Of a tensor of a layer, within it."""
    match = _LAYER.fullmatch(name)
    return name if match is None else match[2]


def _named(name: str, fields: TowerFields, projector: Projector, swapped: bool) -> str | None:
    """transformers' name."""
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        number, own, kind = layer.groups()
        own = _SWAPPED.get(own, own) if swapped else own
        below = _ended(own, kind, projector)
        return None if below is None else f"{projector.layer}.{number}.{below}"
    deep, deepest = _DEEPSTACK.fullmatch(name), fields.layers("is_deepstack_layers")
    if deep is not None and projector.deepstack and int(deep[1]) in deepest:
        below = deep[2].replace("fc", "linear_fc")
        return f"{projector.deepstack}.{deepest.index(int(deep[1]))}.{below}"
    own, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        return _ended(own, kind, projector)
    return projector.tensors.get(name)


def _ended(name: str, kind: str, projector: Projector) -> str | None:
    """kind: of the two, which GGUF's name ends with."""
    tensors = projector.tensors
    return tensors.get(f"{name}.{kind}") or (f"{tensors[name]}.{kind}" if name in tensors else None)


def _swapped(fields: TowerFields) -> bool:
    """Whether the matrix that is called up is the one whose results are as wide as the tower."""
    width, name = fields.size("embedding_length"), "v.blk.0.ffn_down.weight"
    return fields.has(name) and fields.shape(name)[-1] == width != fields.shape(name)[0]


def _part(name: str, fields: TowerFields, projector: Projector) -> NamedTensor:
    tensor = fields.file.tensors[name]
    part = NamedTensor(fields.file, tensor, tensor.shape, offset=projector.offsets.get(name, 0.0))
    layer = _LAYER.fullmatch(name)
    if projector.paired_rows and layer is not None and layer[2] in _PAIRED:
        part = replace(part, row_order=rows_in_pairs(name, tensor.shape[0], fields.size("attention.head_count")))
    return part


def _joined(parts: Sequence[NamedTensor], dimensions: int | None) -> GgufWeight:
    """dimensions: how many transformers has, the first ones of which are 1, if not as many as the tensor."""
    first = parts[0].shape
    if len(parts) == 1 and dimensions is None and len(first) <= 2:
        return parts[0]
    if len({part.shape[1:] for part in parts}) > 1:
        raise ModelError(f"'{parts[0].source[:80]}' of the GGUF file and what belongs to it have unlike shapes.")
    if len(parts) > 1 and len(first) == 4:
        return ComputedTensor((*first[:2], len(parts), *first[2:]), tuple(parts), _frames)
    whole = (sum(part.shape[0] for part in parts), *first[1:])
    if dimensions is not None:
        own = [size for size in whole if size > 1]
        whole = (*[1] * (dimensions - len(own)), *own)
    return ComputedTensor(whole, tuple(parts), _rows)


def _frames(*kernels: Floats) -> Floats:
    """One kernel for each frame, beside one another."""
    return np.stack(kernels, axis=2)


def _rows(*parts: Floats) -> Floats:
    return np.concatenate(parts)
