"""NumPy arrays inside msgspec messages: dtype, shape and raw bytes, never objects.

Annotate a field with Array; encode and decode with `encoder()` and `decoder(type)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]
else:
    Array = np.ndarray

T = TypeVar("T")
_DTYPES = {name: np.dtype(name) for name in ("bool", "uint8", "int32", "int64", "uint64", "float32")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}  # numpy builds dtype.name anew at each access


def int32(values: Any = ()) -> Array:
    """Converts values to a one-dimensional int32 array."""
    return np.asarray(values, dtype=np.int32)


def encode_array(value: Any) -> Any:
    """For msgspec's enc_hook. Raises TypeError for what is no array."""
    if isinstance(value, np.ndarray):
        name = _NAMES.get(value.dtype)
        if name is None:
            raise TypeError(f"arrays of {value.dtype} do not cross a process")
        return (name, value.shape, np.ascontiguousarray(value).data)
    raise TypeError(f"{type(value).__name__} does not cross a process")


def decode_array(kind: type, value: Any) -> Any:
    """For msgspec's dec_hook."""
    if kind is np.ndarray:
        name, shape, data = value
        return np.frombuffer(data, dtype=_DTYPES[name]).reshape(shape)
    raise TypeError(f"{kind.__name__} does not cross a process")


def encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=encode_array)


def decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    return msgspec.msgpack.Decoder(kind, dec_hook=decode_array)
