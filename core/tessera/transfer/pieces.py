"""What travels: pieces of a cache, in parts that follow one another, as either side has them in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tessera.platform.transfer import EngineCache, TokenBlocks, TokenStore


class Pieces(ABC):
    """Of one transfer, on one side."""

    @abstractmethod
    def room(self, tokens: TokenBlocks, first: int, last: int) -> Sequence[memoryview]:
        """Where tokens first to last (exclusive) are received. It stays until room for the piece after the next is
        asked for."""

    @abstractmethod
    def read(self, tokens: TokenBlocks, first: int, last: int) -> Sequence[memoryview]:
        """Tokens first to last (exclusive), to be sent. They stay as long as room() does."""

    @abstractmethod
    def write(self, tokens: TokenBlocks, first: int, last: int, parts: Sequence[memoryview]) -> None:
        """Puts what was received, and is not damaged, into the cache."""


class CanonicalPieces(Pieces):
    """Tokens in canonical form, in memory for two pieces beside the cache. each: tokens of a piece."""

    def __init__(self, cache: EngineCache, each: int) -> None:
        self._cache = cache
        self._buffers = [bytearray(cache.format.piece_bytes(each)) for _ in range(2)]

    def room(self, tokens: TokenBlocks, first: int, last: int) -> Sequence[memoryview]:
        self._buffers.reverse()
        return [memoryview(self._buffers[0])[: self._cache.format.piece_bytes(last - first)]]

    def read(self, tokens: TokenBlocks, first: int, last: int) -> Sequence[memoryview]:
        (data,) = self.room(tokens, first, last)
        self._cache.store.read(tokens, first, last, data)
        return [data]

    def write(self, tokens: TokenBlocks, first: int, last: int, parts: Sequence[memoryview]) -> None:
        (data,) = parts
        self._cache.store.write(tokens, first, last, data)


class BlockPieces(Pieces):
    """Blocks, sent from where they are in one cache and received where they will be in the other: nothing is copied
    between. What arrives damaged is in the cache then, in blocks that nobody reads."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store

    def room(self, tokens: TokenBlocks, first: int, last: int) -> Sequence[memoryview]:
        return self._store.memory(tokens, first, last)

    def read(self, tokens: TokenBlocks, first: int, last: int) -> Sequence[memoryview]:
        return self._store.memory(tokens, first, last)

    def write(self, tokens: TokenBlocks, first: int, last: int, parts: Sequence[memoryview]) -> None:
        """It is there."""
