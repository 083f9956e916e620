"""The weights of a GGUF file, as they are stored or decoded as they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tessera.errors import ModelError, printable
from tessera.gguf.model import open_model
from tessera.gguf.tensors import GgufWeight
from tessera.gguf.vision.model import open_vision_model
from tessera.loader.checkpoint import MAPPED
from tessera.ops.tensors import torch_dtype
from tessera.platform.quantization import Part, WeightFormat
from tessera.quantization.formats.gguf import GgufBlocks


class GgufWeights:
    """The weights of a GGUF file under transformers' names. Raises ModelError, in one line, for a broken file."""

    decodes = True

    def __init__(self, path: str, tower: str = "") -> None:
        """tower: the file of the tower beside the text model; "" for none."""
        self.path = Path(path)
        self.model = open_vision_model(self.path, Path(tower)) if tower else open_model(self.path)
        self.dtype = self.model.dtype
        self.notes: Sequence[str] = ()
        self.form: WeightFormat | None = GgufBlocks(self.model.weights)
        self._read = 0

    def names(self) -> Iterator[str]:
        return iter(self.model.weights)

    def holds(self, name: str) -> bool:
        return name in self.model.weights

    def shape(self, name: str) -> Sequence[int]:
        return self._named(name).shape

    def whole(self, name: str) -> Tensor:
        """Reads a whole tensor by name, in the file's dtype."""
        return self._decoded(self._named(name), slice(None), slice(None)).to(torch_dtype(self.dtype))

    def read(self, part: Part) -> Tensor:
        named = self._named(next((name for name in (part.name, *part.also) if self.holds(name)), part.name))
        shape = named.shape
        if part.encoding is not None and named.block is not None:
            shape = shape[0], shape[1] // named.block.elements, named.block.bytes
        if shape != part.whole:
            raise ModelError(
                f"'{part.name}' has shape {shape} where the settings of the file imply {part.whole}; "
                f"'{printable(self.path)}' does not fit together."
            )
        rows, columns = (slice(None) if bounds is None else slice(*bounds) for bounds in (part.rows, part.columns))
        if part.encoding is not None and named.block is not None:
            blocks = np.array(named.read_blocks(rows, columns))
            self._check(named, named.block.is_finite(blocks))
            self._count(blocks.nbytes)
            return torch.from_numpy(blocks)
        return self._decoded(named, rows, columns)

    def _check(self, named: GgufWeight, finite: bool | np.bool_) -> None:
        """Raises ModelError for a tensor that would make every answer noise."""
        if not finite:
            raise ModelError(
                f"'{printable(self.path)}' holds numbers in '{named.source[:80]}' that are not finite; download "
                "it again."
            )

    def _count(self, nbytes: int) -> None:
        """Maps the file again after MAPPED bytes, as pages that were read stay resident until then."""
        self._read += nbytes
        if self._read >= MAPPED:
            self._read = 0
            self.model.release()

    def differ(self, names: Sequence[str], dtype: str) -> bool:
        """A file without a head of its own ties it; one that has it says so by that."""
        return False

    def release(self) -> None:
        self.model.release()

    def _named(self, name: str) -> GgufWeight:
        if name not in self.model.weights:
            raise ModelError(
                f"'{printable(self.path)}' has no '{name}', which this architecture needs; the file is not whole."
            )
        return self.model.weights[name]

    def _decoded(self, named: GgufWeight, rows: slice, columns: slice) -> Tensor:
        """float32. Of a vector, `rows` are its elements; of several dimensions all but the first are whole."""
        if len(named.shape) == 1:
            (values,) = named.read(slice(None))
            self._check(named, np.isfinite(values).all())
            return torch.from_numpy(values[0, rows])
        start, stop, _ = rows.indices(named.shape[0])
        first, last, _ = columns.indices(math.prod(named.shape[1:]))
        result = torch.empty(stop - start, last - first)
        place = 0
        for values in named.read(rows, columns):
            self._check(named, np.isfinite(values).all())
            result[place : place + len(values)] = torch.from_numpy(values)
            place += len(values)
        return result if len(named.shape) == 2 else result.reshape(len(result), *named.shape[1:])
