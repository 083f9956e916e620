"""The header of a GGUF file: its metadata and the list of its tensors. The file is not trusted: what it says is bounded
before memory is spent on it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap
from typing import Any, NoReturn, TypeVar

import numpy as np

from tessera.errors import ModelError, printable
from tessera.gguf.blocks import BLOCK_TYPES, OTHER_TYPES, BlockType

MAX_VALUES = 2**21
"""The most values in arrays of a file's metadata; a vocabulary of 262,144 tokens has 1.3 million with its merges."""
MAX_TEXTS = 2**20
"""The most strings among them."""
MAX_TEXT_BYTES = 24 * 2**20
"""The most bytes in all strings of the metadata; they may take four times that in memory. That vocabulary has 10 MB."""
MAX_KEYS = 2**16
MAX_TENSORS = 2**16
MAX_DIMENSIONS = 4

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_COUNT = struct.Struct("<Q")
_CODE = struct.Struct("<I")
_TENSOR_BYTES = 24  # the fewest that an entry of the list takes: name's length, dimensions, type, offset
_KEY_BYTES = 13  # the fewest that a key takes: its length, its type, a value
_TEXT, _ARRAY = 8, 9
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies and how it is stored."""

    name: str
    # Of its blocks.
    type: BlockType
    # As torch has it: the dimensions of GGUF reversed; () for a single number.
    shape: tuple[int, ...]
    # Which file of a split, from 0.
    file: int
    # Bytes from the start of that file.
    offset: int

    @property
    def num_rows(self) -> int:
        """Of the tensor seen as a matrix whose rows are its last dimension."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return (self.shape or (1,))[-1] // self.type.elements * self.type.bytes

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class GgufHeader:
    """What a file says of itself."""

    # By key, in the order of the file: str, int, float, bool, or a list of one of these.
    metadata: dict[str, Any]
    # By name, in the order of the file; all of them lie within it.
    tensors: dict[str, GgufTensor]


def read_header(data: mmap, path: str, file: int) -> GgufHeader:
    """data: a file. path: its name in messages. file: which of a split, for its tensors. Raises ModelError."""
    reader = _Reader(data, path)
    reader.begin()
    tensors, keys = reader.count(), reader.count()
    reader.refuse_count(tensors, "tensors", MAX_TENSORS, _TENSOR_BYTES)
    reader.refuse_count(keys, "keys", MAX_KEYS, _KEY_BYTES)
    metadata = _listed(reader, keys, "key", reader.value)
    listed = _listed(reader, tensors, "tensor", lambda name: reader.tensor(name, file))
    return GgufHeader(metadata, _placed(reader, listed, metadata.get("general.alignment", _ALIGNMENT)))


def _listed(reader: _Reader, count: int, kind: str, read: Callable[[str], _Entry]) -> dict[str, _Entry]:
    """Named entries. kind: what they are, for messages."""
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        name = reader.text(f"the name of a {kind}")
        if name in entries:
            reader.refuse(f"{kind} '{printable(name, 80)}' occurs twice")
        entries[name] = read(name)
    return entries


def _placed(reader: _Reader, tensors: dict[str, GgufTensor], alignment: Any) -> dict[str, GgufTensor]:
    """The tensors, whose offsets are from the end of the header, with offsets from the start of the file."""
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        reader.refuse(f"general.alignment is {printable(str(alignment), 40)}, which is not a power of two")
    begin = -(-reader.position // alignment) * alignment
    placed = {}
    for name, tensor in tensors.items():
        if tensor.offset % alignment:
            reader.refuse(f"tensor '{printable(name, 80)}' does not begin at a multiple of {alignment} bytes")
        if begin + tensor.offset + tensor.num_bytes > reader.size:
            reader.refuse_truncated(f"tensor '{printable(name, 80)}' lies beyond its {reader.size:,} bytes")
        placed[name] = GgufTensor(name, tensor.type, tensor.shape, tensor.file, begin + tensor.offset)
    ordered = sorted(placed.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.num_bytes > after.offset:
            names = f"'{printable(before.name, 60)}' and '{printable(after.name, 60)}'"
            reader.refuse(f"tensors {names} overlap")
    return placed


class _Reader:
    """Reads a header from its start to its end, within the limits."""

    def __init__(self, data: mmap, path: str) -> None:
        self.size = len(data)
        self.position = 0
        self._data = data
        self._path = path
        self._values = MAX_VALUES
        self._texts = MAX_TEXTS
        self._text_bytes = MAX_TEXT_BYTES

    # ---- faults ----------------------------------------------------------------

    def refuse(self, fault: str) -> NoReturn:
        raise ModelError(f"'{self._path}' is not a valid GGUF file: {fault}; download it again.")

    def refuse_truncated(self, fault: str = "it ends within its header") -> NoReturn:
        raise ModelError(f"'{self._path}' is truncated: {fault}; download it again.")

    def refuse_count(self, count: int, kind: str, limit: int, size: int) -> None:
        """kind: what is counted. size: the fewest bytes that each takes."""
        if count > limit:
            self.refuse(f"it has {count:,} {kind}, and no model has more than {limit:,}")
        if count * size > self.size - self.position:
            self.refuse_truncated(f"its {self.size:,} bytes do not hold {count:,} {kind}")

    # ---- values ----------------------------------------------------------------

    def begin(self) -> None:
        """The first bytes, which say whether the rest can be read."""
        if self._data[:4] != _MAGIC:
            raise ModelError(f"'{self._path}' is not a GGUF file, although it is named like one; download it again.")
        self.position = 4
        version = self.code()
        if not version & 0xFFFF:
            raise ModelError(
                f"'{self._path}' is a big-endian GGUF file, which is not supported; convert it with "
                "gguf-convert-endian of the gguf package."
            )
        if version not in _VERSIONS:
            advice = "convert the model again with a current llama.cpp" if version < 2 else "use a newer Tessera"
            raise ModelError(f"'{self._path}' is in version {version} of GGUF, which is not supported; {advice}.")

    def count(self) -> int:
        return self._unpack(_COUNT)

    def code(self) -> int:
        return self._unpack(_CODE)

    def _unpack(self, form: struct.Struct) -> int:
        stop = self.position + form.size
        if stop > self.size:
            self.refuse_truncated()
        (number,) = form.unpack_from(self._data, self.position)
        self.position = stop
        return int(number)

    def text(self, what: str) -> str:
        return self._strings(1, what)[0]

    def value(self, key: str) -> Any:
        what = f"key '{printable(key, 80)}'"
        kind = self.code()
        if kind != _ARRAY:
            return self._array(kind, 1, what)[0]
        kind, count = self.code(), self.count()
        if kind == _ARRAY:
            self.refuse(f"{what} is an array of arrays")
        self._values -= count
        if self._values < 0:
            self.refuse(f"{what} makes more than {MAX_VALUES:,} values in arrays, and no model has so many")
        return self._array(kind, count, what)

    def _array(self, kind: int, count: int, what: str) -> list[Any]:
        if kind == _TEXT:
            return self._strings(count, what)
        if kind not in _NUMBERS:
            self.refuse(f"{what} is of type {kind}, which GGUF does not have")
        dtype = np.dtype(_NUMBERS[kind])
        stop = self.position + count * dtype.itemsize
        if stop > self.size:
            self.refuse_truncated()
        numbers = np.frombuffer(self._data[self.position : stop], dtype)
        self.position = stop
        # A flag is a byte, and only 0 and 1 are values of numpy's.
        values = numbers.view(np.uint8) != 0 if dtype == np.bool_ else numbers
        return list(values.tolist())

    def _strings(self, count: int, what: str) -> list[str]:
        self._texts -= count
        if self._texts < 0:
            self.refuse(f"{what} makes more than {MAX_TEXTS:,} strings, and no model has so many")
        data, unpack, position = self._data, _COUNT.unpack_from, self.position
        lengths = position + count * _COUNT.size
        limit = min(self.size, lengths + self._text_bytes)
        texts = []
        try:
            for _ in range(count):
                begin = position + 8
                position = begin + unpack(data, position)[0]
                if position > limit:
                    self._refuse_text(position, what)
                texts.append(str(data[begin:position], "utf-8"))
        except struct.error:
            self.refuse_truncated()
        except UnicodeDecodeError:
            self.refuse(f"{what} is not UTF-8 text")
        self.position = position
        self._text_bytes -= position - lengths
        return texts

    def _refuse_text(self, stop: int, what: str) -> NoReturn:
        if stop > self.size:
            self.refuse_truncated(f"{what} goes on beyond its {self.size:,} bytes")
        self.refuse(f"{what} makes more than {MAX_TEXT_BYTES >> 20} MiB of text, and no model has so much")

    # ---- tensors ---------------------------------------------------------------

    def tensor(self, name: str, file: int) -> GgufTensor:
        """Its offset is from the end of the header."""
        what = f"tensor '{printable(name, 80)}'"
        dimensions = self.code()
        if dimensions > MAX_DIMENSIONS:
            self.refuse(f"{what} has {dimensions:,} dimensions, and at most {MAX_DIMENSIONS} are possible")
        shape = tuple(self.count() for _ in range(dimensions))[::-1]
        if 0 in shape:
            self.refuse(f"{what} has a dimension of 0")
        kind = self.code()
        if kind not in BLOCK_TYPES:
            name_of_kind = f" ({OTHER_TYPES[kind]})" if kind in OTHER_TYPES else ""
            raise ModelError(
                f"'{self._path}' stores {what} in type {kind}{name_of_kind}, which is not supported; use a file of "
                "the model in another one, such as Q4_K_M or Q8_0."
            )
        block = BLOCK_TYPES[kind]
        if (shape or (1,))[-1] % block.elements:
            self.refuse(f"{what} has rows of {(shape or (1,))[-1]:,}, which blocks of {block.elements} do not divide")
        return GgufTensor(name, block, shape, file, self.count())
