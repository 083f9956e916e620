"""Vectors as JSON has them: lists of numbers, or base64 of their bytes."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tessera.arrays import Array
from tessera.errors import RequestError

FORMATS = ("float", "base64")
DTYPES = ("float32", "float16", "bfloat16")
ENDIANNESSES = ("native", "little", "big")


class EncodingFields(Protocol):
    """The fields of a request that say it."""

    encoding_format: str | None
    embed_dtype: str | None
    endianness: str | None


@dataclass(frozen=True)
class VectorEncoding:
    """dtype, endianness: of base64; float16 and bfloat16 round to the nearest. The names are vLLM's."""

    format: str = FORMATS[0]
    dtype: str = DTYPES[0]
    endianness: str = ENDIANNESSES[0]

    @classmethod
    def from_fields(cls, fields: EncodingFields) -> VectorEncoding:
        """Raises RequestError for a value that is not known."""
        return cls(
            _choice("encoding_format", fields.encoding_format, FORMATS),
            _choice("embed_dtype", fields.embed_dtype, DTYPES),
            _choice("endianness", fields.endianness, ENDIANNESSES),
        )

    def write(self, values: Array) -> Any:
        """values: float32 of any shape, as nested lists, or as base64, which has row by row."""
        if self.format == "float":
            return values.tolist()
        return base64.b64encode(self._bytes(values)).decode("ascii")

    def _bytes(self, values: Array) -> bytes:
        numbers = np.ascontiguousarray(values, np.float32)
        if self.dtype == "float16":
            numbers = numbers.astype(np.float16)
        elif self.dtype == "bfloat16":
            numbers = _bfloat16(numbers)
        order = {"native": sys.byteorder, "little": "little", "big": "big"}[self.endianness]
        return numbers.tobytes() if order == sys.byteorder else numbers.byteswap().tobytes()


def _choice(name: str, value: str | None, choices: tuple[str, ...]) -> str:
    if value is None:
        return choices[0]
    if value not in choices:
        raise RequestError(f"{name} must be one of {', '.join(choices)}.", param=name)
    return value


def _bfloat16(values: Array) -> Array:
    """The upper halves of float32, rounded to the nearest, ties to even; uint16."""
    bits = values.view(np.uint32)
    halves: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return halves
