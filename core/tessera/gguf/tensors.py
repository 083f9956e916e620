"""The tensors of a GGUF file under transformers' names, and their values.

llama.cpp's converters store some weights changed: rows of queries and keys in pairs, heads in another order, norms with
an offset, decays instead of their logarithms, experts stacked. Here they are as transformers has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tessera.errors import ModelError
from tessera.gguf.blocks import BlockType
from tessera.gguf.file import GgufFile
from tessera.gguf.header import GgufTensor

Floats = np.ndarray[Any, np.dtype[Any]]
"""float32"""

Order = np.ndarray[Any, np.dtype[np.int64]]
"""Of rows or elements: where the file has each of transformers'."""

SLICE = 1 << 20
"""Elements that are decoded at a time, which fit into a processor's cache."""


class GgufWeight(Protocol):
    """A weight as transformers has it, of a file."""

    @property
    def source(self) -> str:
        """What messages call it: the name of its tensor, or of the first of them."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """As transformers has it."""
        ...

    @property
    def block(self) -> BlockType | None:
        """What its rows are stored in; None of a weight that can only be decoded."""
        ...

    def read(self, rows: slice, columns: slice = slice(None)) -> Iterator[Floats]:
        """The values of some rows and columns, float32 [n, columns], in slices of rows one after the other. A vector
        has one row, and of several dimensions all but the first are columns."""
        ...

    def read_blocks(self, rows: slice, columns: slice = slice(None)) -> Any:
        """Some rows of a matrix, and some columns of its blocks, as they are stored: uint8 [n, blocks, bytes]. Only of
        a weight with a `block`."""
        ...


@dataclass(frozen=True)
class NamedTensor:
    """A vector or a matrix within a tensor of the file."""

    file: GgufFile
    tensor: GgufTensor
    # as transformers has it
    shape: tuple[int, ...]
    # of the file's tensor, where the weight begins: experts are stacked
    first_row: int = 0
    # [rows]: the file's row of each; None: the same
    row_order: Order | None = None
    # [elements of a row]: the file's element of each; None: the same
    order: Order | None = None
    # what is subtracted from the stored values
    offset: float = 0.0

    @property
    def source(self) -> str:
        return self.tensor.name

    @property
    def block(self) -> BlockType | None:
        return self.tensor.type if self.order is None and len(self.shape) == 2 else None

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.shape[0] if len(self.shape) == 1 else math.prod(self.shape[1:])

    def read(self, rows: slice, columns: slice = slice(None)) -> Iterator[Floats]:
        start, stop, _ = rows.indices(1 if len(self.shape) == 1 else self.shape[0])
        wanted = np.arange(self.width)[columns] if self.order is None else self.order[columns]
        if not len(wanted):
            return
        block = self.tensor.type.elements
        low, high = int(wanted.min()) // block, -(-(int(wanted.max()) + 1) // block)
        step = max(1, SLICE // ((high - low) * block))
        for begin in range(start, stop, step):
            stored = self._stored_rows(begin, min(stop, begin + step))
            blocks = stored.reshape(len(stored), -1, self.tensor.type.bytes)[:, low:high]
            values = self.tensor.type.dequantize(np.ascontiguousarray(blocks).reshape(-1, self.tensor.type.bytes))
            values = values.reshape(len(stored), -1)
            first = int(wanted[0]) - low * block
            values = values[:, first : first + len(wanted)] if self.order is None else values[:, wanted - low * block]
            yield values - np.float32(self.offset) if self.offset else values

    def read_blocks(self, rows: slice, columns: slice = slice(None)) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        stored = self._stored_rows(start, stop)
        return stored.reshape(len(stored), -1, self.tensor.type.bytes)[:, columns]

    def _stored_rows(self, start: int, stop: int) -> Any:
        """uint8 [stop - start, bytes of a row]"""
        if self.row_order is None:
            each = math.prod(self.shape[1:-1])  # the file's rows within one of the weight
            stored = self.file.rows(self.tensor, self.first_row + start * each, self.first_row + stop * each)
            return stored.reshape(stop - start, each * self.tensor.row_bytes)
        wanted = self.row_order[start:stop]
        low, high = int(wanted.min()), int(wanted.max()) + 1
        return self.file.rows(self.tensor, self.first_row + low, self.first_row + high)[wanted - low]


@dataclass(frozen=True)
class ComputedTensor:
    """A weight that is computed from whole tensors of the file."""

    # as transformers has it
    shape: tuple[int, ...]
    parts: tuple[NamedTensor, ...]
    # makes the weight of their values: of these shapes, float32
    compute: Callable[..., Floats]
    block: None = None

    @property
    def source(self) -> str:
        return self.parts[0].source

    def read(self, rows: slice, columns: slice = slice(None)) -> Iterator[Floats]:
        values = self.compute(*(_values(part) for part in self.parts))
        yield values.reshape(1 if len(self.shape) == 1 else self.shape[0], -1)[rows, columns]

    def read_blocks(self, rows: slice, columns: slice = slice(None)) -> None:
        raise AssertionError("it has none")


def _values(part: NamedTensor) -> Floats:
    """In its own shape."""
    if part.shape == part.tensor.shape and part.row_order is None and part.order is None:
        return read_values(part.file, part.tensor) - np.float32(part.offset)
    return np.concatenate(list(part.read(slice(None)))).reshape(part.shape)


def read_values(file: GgufFile, tensor: GgufTensor) -> Floats:
    """All values of a tensor as the file has them."""
    stored = file.rows(tensor, 0, int(np.prod(tensor.shape[:-1], dtype=np.int64)))
    return tensor.type.dequantize(stored.reshape(-1, tensor.type.bytes)).reshape(tensor.shape)


def depthwise(weight: NamedTensor) -> NamedTensor:
    """The kernels of a convolution of each channel by itself, which have a dimension more in transformers. Its bias is
    as it is."""
    return weight if len(weight.shape) < 2 else replace(weight, shape=(weight.shape[0], 1, *weight.shape[1:]))


def log_decay(weight: NamedTensor) -> ComputedTensor:
    """A_log of a state's heads, of which files have -exp(A_log), some with a dimension more."""
    return ComputedTensor((math.prod(weight.shape),), (weight,), lambda values: np.log(-values))


def rows_in_pairs(name: str, rows: int, heads: int) -> Order:
    """NamedTensor.row_order of queries or keys with so many heads, whose rows i and i + half a head are beside one
    another. name: GGUF's of the tensor. Raises ModelError."""
    if rows % (2 * heads):
        raise ModelError(f"'{name}' of the GGUF file has {rows} rows, which are not pairs of {heads} heads.")
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def experts_of(named: str, file: GgufFile, tensor: GgufTensor) -> Iterator[tuple[str, NamedTensor]]:
    """A stack of experts' matrices or biases, each by its name. Raises ModelError."""
    if len(tensor.shape) not in (2, 3):
        raise ModelError(f"'{tensor.name[:80]}' of the GGUF file is not a stack of experts' weights.")
    experts, *shape = tensor.shape
    rows = shape[0] if len(shape) == 2 else 1
    for expert in range(experts):
        yield named.format(expert), NamedTensor(file, tensor, tuple(shape), first_row=expert * rows)
