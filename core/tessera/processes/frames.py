"""Messages over a pipe or a stream socket: frames, each a length and so many bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import StreamReader

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct(">Q")


def frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def frame_bytes(framed: bytes) -> int:
    """How long the message in a frame is."""
    return len(framed) - _LENGTH.size


def read_frame(read_into: Callable[[memoryview], int], max_bytes: int = MAX_FRAME_BYTES) -> bytearray:
    """Waits for the next message. read_into: recv_into of a socket or readinto of a file. Raises EOFError if the other
    side is gone, and ValueError for a message that is longer than max_bytes."""
    (length,) = _LENGTH.unpack(_read_exactly(read_into, _LENGTH.size))
    return _read_exactly(read_into, _checked(length, max_bytes))


async def read_frame_async(reader: StreamReader, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """As read_frame()."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(_checked(length, max_bytes))


def _checked(length: int, max_bytes: int) -> int:
    if length > max_bytes:
        raise ValueError(f"a message of {length} bytes is too long; the most is {max_bytes}")
    return length


def _read_exactly(read_into: Callable[[memoryview], int], size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = read_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return data
