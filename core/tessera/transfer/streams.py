"""How the parts of pieces get from one engine to the other, behind each the hash of what it was made of."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from xxhash import xxh3_64

CHUNK_BYTES = 256 << 10
"""Hashed and sent, or received and hashed, one after the other: the processor's cache holds as much."""


class Stream(ABC):
    """One side of a transfer."""

    @abstractmethod
    def send_parts(self, parts: Sequence[memoryview]) -> None:
        """Returns when their memory may change. Raises OSError, EOFError."""

    @abstractmethod
    def receive_parts(self, parts: Sequence[memoryview]) -> bool:
        """Fills them. Whether they are what was sent. Raises OSError, EOFError."""

    def finish(self) -> None:
        """Called by the side that sends, behind the last piece, before anything else is said over the connection.
        Raises OSError, EOFError. Default: nothing."""


class SocketStream(Stream):
    """Over the connection itself."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def send_parts(self, parts: Sequence[memoryview]) -> None:
        digest = xxh3_64()
        for chunk in chunks_of(parts, CHUNK_BYTES):
            digest.update(chunk)
            self._link.sendall(chunk)
        self._link.sendall(digest.digest())

    def receive_parts(self, parts: Sequence[memoryview]) -> bool:
        digest = xxh3_64()
        for chunk in chunks_of(parts, CHUNK_BYTES):
            fill(self._link, chunk)
            digest.update(chunk)
        return receive_exactly(self._link, digest.digest_size) == digest.digest()


def fill(link: socket.socket, data: memoryview) -> None:
    """Raises OSError, EOFError."""
    while data:
        count = link.recv_into(data)
        if not count:
            raise EOFError
        data = data[count:]


def receive_exactly(link: socket.socket, size: int) -> bytes:
    """Raises OSError, EOFError."""
    data = bytearray(size)
    fill(link, memoryview(data))
    return bytes(data)


def chunks_of(parts: Sequence[memoryview], size: int) -> Iterator[memoryview]:
    for part in parts:
        for start in range(0, len(part), size):
            yield part[start : start + size]
