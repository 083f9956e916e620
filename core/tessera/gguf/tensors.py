"""The tensors of a GGUF file under transformers' names, and their values.

llama.cpp's converters store some weights changed: rows of queries and keys in pairs, norms with an offset, experts
stacked. Here they are as transformers has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tessera.errors import ModelError
from tessera.gguf.blocks import BlockType
from tessera.gguf.file import GgufFile
from tessera.gguf.header import GgufTensor

Floats = np.ndarray[Any, np.dtype[Any]]
"""float32"""

_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_ENDS: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
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
    # rows of a head that are stored in pairs: row i beside row i + head_rows / 2; 0: rows are in their order
    head_rows: int = 0
    # what is subtracted from the stored values
    offset: float = 0.0

    @property
    def source(self) -> str:
        return self.tensor.name

    @property
    def block(self) -> BlockType:
        return self.tensor.type

    def read(self, rows: slice, columns: slice = slice(None)) -> Iterator[Floats]:
        count, width = (1, self.shape[0]) if len(self.shape) == 1 else (self.shape[0], self.shape[1])
        start, stop, _ = rows.indices(count)
        first, last, _ = columns.indices(width)
        block = self.tensor.type.elements
        low, high = first // block, -(-last // block)
        step = max(1, SLICE // max(1, (high - low) * block))
        for begin in range(start, stop, step):
            stored = self._stored_rows(begin, min(stop, begin + step))
            blocks = stored.reshape(len(stored), -1, self.tensor.type.bytes)[:, low:high]
            values = self.tensor.type.dequantize(np.ascontiguousarray(blocks).reshape(-1, self.tensor.type.bytes))
            values = values.reshape(len(stored), -1)[:, first - low * block : last - low * block]
            yield values - np.float32(self.offset) if self.offset else values

    def read_blocks(self, rows: slice, columns: slice = slice(None)) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        stored = self._stored_rows(start, stop)
        return stored.reshape(len(stored), -1, self.tensor.type.bytes)[:, columns]

    def _stored_rows(self, start: int, stop: int) -> Any:
        """uint8 [stop - start, bytes of a row]"""
        if not self.head_rows:
            return self.file.rows(self.tensor, self.first_row + start, self.first_row + stop)
        half = self.head_rows // 2
        low = start - start % self.head_rows
        high = min(self.shape[0], stop + -stop % self.head_rows)
        wanted = np.arange(start, stop)
        head, within = wanted // self.head_rows, wanted % self.head_rows
        paired = head * self.head_rows + 2 * (within % half) + within // half
        return self.file.rows(self.tensor, low, high)[paired - low]


def read_values(file: GgufFile, tensor: GgufTensor) -> Floats:
    """All values of a tensor as the file has them."""
    stored = file.rows(tensor, 0, int(np.prod(tensor.shape[:-1], dtype=np.int64)))
    return tensor.type.dequantize(stored.reshape(-1, tensor.type.bytes)).reshape(tensor.shape)


def named_tensors(
    file: GgufFile, names: Mapping[str, str], *, heads: Mapping[str, int], norm_offset: float, other: frozenset[str]
) -> dict[str, NamedTensor]:
    """All weights by transformers' name. names: of the tensors of a layer. heads: by GGUF's name, the number of heads
    whose rows are stored in pairs. other: tensors that are no weights. Raises ModelError for a tensor without a name,
    which the model would not use."""
    weights: dict[str, NamedTensor] = {}
    for name, tensor in file.tensors.items():
        if name in other:
            continue
        plain = NamedTensor(file, tensor, tensor.shape)
        if name in _ENDS:
            is_norm = name == "output_norm.weight"
            weights[_ENDS[name]] = replace(plain, offset=norm_offset) if is_norm else plain
            continue
        match = _LAYER.fullmatch(name)
        if match is None or match[2] not in names:
            raise ModelError(
                f"the GGUF file has a tensor '{name[:80]}', which models of its architecture have not as far as is "
                "known here; it is not served, as its answers might be wrong."
            )
        layer, own, kind = match.groups()
        named = f"model.layers.{layer}.{names[own]}.{kind}"
        if own in heads:
            plain = replace(plain, head_rows=head_rows(name, tensor, heads[own]))
        if own.endswith("norm"):
            plain = replace(plain, offset=norm_offset)
        if "{}" in named:
            weights |= _experts(named, file, tensor)
        else:
            weights[named] = plain
    return weights


def head_rows(name: str, tensor: GgufTensor, heads: int) -> int:
    """NamedTensor.head_rows of queries or keys with so many heads. Raises ModelError."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise ModelError(f"'{name}' of the GGUF file has {rows} rows, which are not pairs of {heads} heads.")
    return rows // heads


def _experts(named: str, file: GgufFile, tensor: GgufTensor) -> Iterator[tuple[str, NamedTensor]]:
    if len(tensor.shape) != 3:
        raise ModelError(f"'{tensor.name[:80]}' of the GGUF file is not a stack of experts' weights.")
    experts, rows, width = tensor.shape
    for expert in range(experts):
        yield named.format(expert), NamedTensor(file, tensor, (rows, width), first_row=expert * rows)
