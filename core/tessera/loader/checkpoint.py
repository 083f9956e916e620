"""Weight sources, and the one of a checkpoint: the safetensors files of a folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from tessera.config.model_folder import INDEX, open_weights
from tessera.config.weight_files import SINGLE, find_weights
from tessera.errors import ModelError, printable
from tessera.loader.modality_experts import RenamedPlace, modality_places
from tessera.loader.stacked_experts import ExpertPlace, expert_places
from tessera.ops.tensors import torch_dtype
from tessera.platform.quantization import Part, WeightFormat

_FLOATS: Mapping[str, str] = MappingProxyType(
    {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float32"}
)
_SCALES = ("_scale", "_scale_inv")
APART = "the folder's files and config.json do not belong together"

SMALL = 1 << 20
"""Tensors of fewer bytes are copied, because a view would keep the whole file mapped."""
MAPPED = 256 << 20
"""Bytes read before files are mapped again: pages that were read stay resident until their mapping is closed."""
MAX_VECTOR = 1 << 16
"""Elements of a vector whose length nothing implies."""
COMPARED = 1 << 22
"""Elements of two tensors that are compared at a time."""


BASE = "model."
_BESIDE = "language_model."
_BASES = (BASE, "model.language_model.", "model.text_model.", "language_model.model.", "thinker.model.", _BESIDE, "")
"""What is in front of a decoder's names, at the last one's if it was saved without its head."""
_HEADS = ("language_model.lm_head.", "thinker.lm_head.")
"""How a head is named beside the fourth and the fifth of them."""
_WITHIN = "vlm."
"""What is in front of all names of a model within a retriever."""
_BACKBONE = f"{_BESIDE}backbone."
"""What is in front of the names of a decoder with its head, where others are beside it."""


class WeightSource(Protocol):
    """Reads a part of a tensor, in the checkpoint's dtype, on the host. differ(), holds() and names() are those
    of layers.build.Stored. release() gives up resources held for reading, until the next part is read."""

    # of its matrices
    dtype: str
    # lines about the files, to say at start-up
    notes: Sequence[str]
    # whether reading computes the numbers, so that it pays to read few at a time, on several threads
    decodes: bool
    # how weights are stored, if the files say so and config.json does not
    form: WeightFormat | None

    def read(self, part: Part) -> Tensor: ...
    def differ(self, names: Sequence[str], dtype: str) -> bool: ...
    def holds(self, name: str) -> bool: ...
    def names(self) -> Iterable[str]: ...
    def release(self) -> None: ...


class Safetensors:
    """The *.safetensors files of a folder, memory-mapped, so that a shard reads only its own bytes. A mapping is closed
    when every tensor read from it is dropped. Raises ModelError, in one line, for missing or broken files."""

    decodes = False
    form: WeightFormat | None = None

    def __init__(self, folder: str, modules: Sequence[str] = ()) -> None:
        """modules: folders within it, each with a model.safetensors, whose tensors get the folder's name in front."""
        self.folder = Path(folder)
        # What a tensor is called in its file, where that differs.
        self._own_names: dict[str, str] = {}
        # Where weights of experts are that the files do not have one by one, or have by other names.
        self._experts: dict[str, ExpertPlace | RenamedPlace] = {}
        self._files: dict[str, Any] = {}
        self._read = 0
        self.notes: Sequence[str] = ()
        self._where = self._with_base(self._find())
        self._find_experts()
        for module in modules:
            self._add_module(module)
        self.dtype = self._dtype_of_matrices()

    def names(self) -> Iterator[str]:
        return (name for name in self._where if name not in self._experts)

    def shape(self, name: str) -> Sequence[int]:
        return tuple(self._stored(name).get_shape())

    def whole(self, name: str) -> Tensor:
        """Reads a whole tensor by name."""
        return self._taken(self._stored(name)[...])

    def read(self, part: Part) -> Tensor:
        stored = self._stored(next((name for name in (part.name, *part.also) if name in self._where), part.name))
        shape = tuple(stored.get_shape())
        if part.whole == (-1,) and len(shape) == 1 and shape[0] <= MAX_VECTOR:
            return self._taken(stored[...])
        if shape != part.whole and math.prod(shape) == 1 == math.prod(part.whole):
            return self._taken(stored[...].reshape(part.whole))  # some write a single number as [], others as [1]
        if shape == (1, *part.whole) and len(part.whole) == 1 and part.rows is None:
            return self._taken(stored[0])  # a vector for each of the groups of experts, of which there is one
        if len(shape) == 3 and part.rows is not None and (shape[0] * shape[1], shape[2]) == part.whole:
            number, first = divmod(part.rows[0], shape[1])  # rows of one of the matrices that lie in a tensor
            return self._taken(stored[number, first : first + part.rows[1] - part.rows[0]])
        if shape != part.whole:
            raise ModelError(
                f"'{part.name}' has shape {printable(str(shape), 80)} where config.json implies {part.whole}; {APART}."
            )
        rows = _within(part.rows, shape[0]) if shape else ...
        return self._taken(stored[rows] if part.columns is None else stored[rows, slice(*part.columns)])

    def holds(self, name: str) -> bool:
        """Whether there is a weight of this name, quantized or not: a quantized one may be in "weight_packed" and
        others."""
        return name in self._where or any(stored.startswith(f"{name}_") for stored in self._where)

    def differ(self, names: Sequence[str], dtype: str) -> bool:
        first, *others = [name for name in names if self.holds(name)] or [""]
        return any(not self._equal(first, other, torch_dtype(dtype)) for other in others)

    def _equal(self, first: str, second: str, dtype: torch.dtype) -> bool:
        """Whether two weights have the same values in a dtype. Quantized ones are equal to none."""
        if first not in self._where or second not in self._where:
            return False
        stored = [self._stored(name) for name in (first, second)]
        shape, *shapes = [tuple(tensor.get_shape()) for tensor in stored]
        if shapes != [shape] or not shape or any(tensor.get_dtype() not in _FLOATS for tensor in stored):
            return False
        step = max(1, COMPARED // max(1, math.prod(shape[1:])))
        for start in range(0, shape[0], step):
            rows = start, start + step
            left, right = (self.read(Part(name, shape, rows)).to(dtype) for name in (first, second))
            if not torch.equal(left, right):
                return False
        return True

    def release(self) -> None:
        self._files.clear()
        self._read = 0

    def _taken(self, tensor: Tensor) -> Tensor:
        self._read += tensor.nbytes
        if self._read >= MAPPED:
            self.release()
        return tensor.clone() if tensor.nbytes < SMALL else tensor

    def _stored(self, name: str) -> Any:
        """A tensor in its file; none of it is read yet."""
        if name not in self._where and self._own_names.get(f"{BASE}{name}") == name:
            name = f"{BASE}{name}"  # of a tower beside a decoder that was saved without its own beginning
        if name not in self._where:
            raise ModelError(f"the checkpoint has no '{name}', which this architecture needs; {APART}.")
        if name in self._experts:
            place = self._experts[name]
            return place.view(self._stored(place.tensor))
        file = self._where[name]
        try:
            return self._open(file).get_slice(self._own_names.get(name, name))
        except SafetensorError:
            raise ModelError(
                f"{INDEX} says that {printable(file, 60)} has '{printable(name, 80)}', but it has not; download both."
            ) from None

    def _open(self, file: str) -> Any:
        if file not in self._files:
            self._files[file] = open_weights(self.folder, file, "pt")
        return self._files[file]

    def _names_in(self, file: str) -> list[str]:
        return [*self._open(file).keys()]

    def _find(self) -> Mapping[str, str]:
        """Which file holds each tensor, by tensor name."""
        found = find_weights(self.folder)
        if not found.files:
            raise ModelError(
                f"no *.safetensors in '{printable(self.folder)}'; other formats are not supported "
                "(use --load-format dummy for random weights)."
            )
        self.notes = found.notes
        return self._listed(found.files) if found.index is None else found.index

    def _with_base(self, where: Mapping[str, str]) -> dict[str, str]:
        """Names those of a decoder as they are where it was saved alone and with its head."""
        bare = {name.removeprefix(_WITHIN): name for name in where}
        base = next((base for base in _BASES if f"{base}embed_tokens.weight" in bare), BASE)
        if base == BASE and any(name.startswith(_BACKBONE) for name in bare):
            base = _BACKBONE
        if base != BASE:
            bare = {_renamed(name, base): own for name, own in bare.items()}
        self._own_names = {name: own for name, own in bare.items() if name != own}
        return {name: where[own] for name, own in bare.items()}

    def _find_experts(self) -> None:
        self._experts = {
            **dict(expert_places(self._where, self.shape)),
            **dict(modality_places(self._where, self.shape)),
        }
        self._where |= {name: self._where[place.tensor] for name, place in self._experts.items()}

    def _add_module(self, module: str) -> None:
        file = f"{module}/{SINGLE}"
        for name in self._names_in(file):
            self._where[f"{module}.{name}"] = file
            self._own_names[f"{module}.{name}"] = name

    def _listed(self, files: Sequence[str]) -> dict[str, str]:
        """The same without an index."""
        where: dict[str, str] = {}
        for file in files:
            for name in self._names_in(file):
                if name in where:
                    raise ModelError(
                        f"'{printable(name, 80)}' is in both {printable(where[name], 60)} and {printable(file, 60)} of "
                        f"'{printable(self.folder)}'; remove the file that is not the model's."
                    )
                where[name] = file
        return where

    def _dtype_of_matrices(self) -> str:
        """The dtype of the first matrix that is not quantized; norms and scales may have a wider one."""
        stored = (self._stored(name) for name in self._where if not name.endswith(_SCALES))
        kinds = (tensor.get_dtype() for tensor in stored if len(tensor.get_shape()) > 1)
        return next((_FLOATS[kind] for kind in kinds if kind in _FLOATS), "float32")


def _renamed(name: str, base: str) -> str:
    """A tensor's name without what another model beside the decoder, or its lack of a head, adds to it."""
    if name.startswith(_HEADS):
        return name.partition(".")[2]
    if base == _BACKBONE:
        return name.removeprefix(_BESIDE)
    if name.startswith(f"{base}lm_head."):
        return name.removeprefix(base)
    return f"{BASE}{name.removeprefix(base)}" if name.startswith(base) else name


def _within(bounds: tuple[int, int] | None, size: int) -> slice:
    """Bounds clipped to size, as a slice."""
    return slice(None) if bounds is None else slice(min(bounds[0], size), min(bounds[1], size))
