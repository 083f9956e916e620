"""Whether an adapter's weights can be computed with, found out without torch: an engine that reads NaN in a step cannot
go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tessera.config.lora import WEIGHTS, Adapter
from tessera.errors import ModelError, printable

_KINDS: Mapping[str, str] = MappingProxyType({"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"})
_LARGEST: Mapping[str, float] = MappingProxyType(
    {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": 3.3895313892515355e38}
)
_LENGTH = 8  # bytes of the header's length


def check_values(adapter: Adapter, dtype: str) -> None:
    """dtype: of the model. Reads all weights. Raises ModelError for NaN, infinity, and what becomes infinity in this
    dtype."""
    for values in _tensors(adapter):
        # Written so that NaN, for which every comparison is false, is too large.
        if values.size and not float(np.abs(values).max()) <= _LARGEST[dtype]:
            raise ModelError(
                f"'{printable(adapter.folder / WEIGHTS)}' holds NaN or infinity in {dtype}; train it again."
            )


def _tensors(adapter: Adapter) -> Iterator[NDArray[Any]]:
    """Of a file whose header read_adapter() has checked (https://github.com/huggingface/safetensors#format). NumPy has
    no bfloat16, which is the upper half of a float32."""
    path = adapter.folder / WEIGHTS
    with path.open("rb") as file:
        size = int.from_bytes(file.read(_LENGTH), "little")
        header = json.loads(file.read(size))
    data = np.memmap(path, np.uint8, "r", offset=_LENGTH + size)
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = data[begin:end].view(_KINDS[entry["dtype"]])
            yield (values.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else values
