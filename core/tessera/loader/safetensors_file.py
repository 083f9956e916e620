"""Writes a *.safetensors file one tensor at a time (https://github.com/huggingface/safetensors#format); the library
writes a whole file from memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor

_KINDS: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int8: "I8",
        torch.uint8: "U8",
    }
)
_LENGTH = 8  # bytes of the header's length
_ENTRY = 192
"""Bytes in the header that a tensor takes beside its name: kind, shape and place."""


class SafetensorsFile:
    """`with SafetensorsFile(path, room) as file: file.add(name, tensor)`. room: bytes for the header, as room_for() has
    them, which is written at the end, into the space before the tensors."""

    def __init__(self, path: Path, room: int) -> None:
        self._room = room + -(room + _LENGTH) % 64  # tensors begin at a multiple of 64 bytes
        self._header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._end = 0
        self._file = path.open("xb")
        self._file.seek(_LENGTH + self._room)

    def __enter__(self) -> Self:
        return self

    def add(self, name: str, tensor: Tensor) -> int:
        """Returns the bytes that the tensor takes. Raises KeyError for a dtype without a kind."""
        data = tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
        begin, self._end = self._end, self._end + data.nbytes
        place = {"dtype": _KINDS[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, self._end]}
        self._header[name] = place
        self._file.write(data.flatten().numpy().data)
        return data.nbytes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                text = json.dumps(self._header, separators=(",", ":")).encode()
                assert len(text) <= self._room
                self._file.seek(0)
                self._file.write(self._room.to_bytes(_LENGTH, "little") + text.ljust(self._room))
        finally:
            self._file.close()


def room_for(names: Mapping[str, int]) -> int:
    """Bytes that suffice for the header. names: of tensors, and how many are stored for each, whose names are at most
    32 bytes longer."""
    return 64 + sum(count * (len(json.dumps(name)) + 32 + _ENTRY) for name, count in names.items())
