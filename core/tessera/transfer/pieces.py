"""What travels: pieces of a cache, in parts that follow one another, as either side has them in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tessera.platform.transfer import EngineCache, KVPiece, TokenBlocks, TokenStore


class Pieces(ABC):
    """Of one transfer, on one side."""

    @abstractmethod
    def room(self, tokens: TokenBlocks, piece: KVPiece) -> Sequence[memoryview]:
        """Where a piece is received. It stays until room for the piece after the next is asked for."""

    @abstractmethod
    def read(self, tokens: TokenBlocks, piece: KVPiece) -> Sequence[memoryview]:
        """A piece to be sent. It stays as long as room() does."""

    @abstractmethod
    def write(self, tokens: TokenBlocks, piece: KVPiece, parts: Sequence[memoryview]) -> None:
        """Puts what was received, and is not damaged, into the cache."""


class CanonicalPieces(Pieces):
    """Tokens in canonical form, in memory for two pieces beside the cache. each: the most tokens of a piece."""

    def __init__(self, cache: EngineCache, each: int) -> None:
        self._cache = cache
        self._buffers = [bytearray(cache.format.most_bytes(each)) for _ in range(2)]

    def room(self, tokens: TokenBlocks, piece: KVPiece) -> Sequence[memoryview]:
        self._buffers.reverse()
        return [memoryview(self._buffers[0])[: self._cache.format.piece_bytes(piece)]]

    def read(self, tokens: TokenBlocks, piece: KVPiece) -> Sequence[memoryview]:
        (data,) = self.room(tokens, piece)
        self._cache.store.read(tokens, piece, data)
        return [data]

    def write(self, tokens: TokenBlocks, piece: KVPiece, parts: Sequence[memoryview]) -> None:
        (data,) = parts
        self._cache.store.write(tokens, piece, data)


class BlockPieces(Pieces):
    """Blocks, sent from where they are in one cache and received where they will be in the other: nothing is copied
    between. What arrives damaged is in the cache then, in blocks that nobody reads."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store

    def room(self, tokens: TokenBlocks, piece: KVPiece) -> Sequence[memoryview]:
        return self._store.memory(tokens, piece)

    def read(self, tokens: TokenBlocks, piece: KVPiece) -> Sequence[memoryview]:
        return self._store.memory(tokens, piece)

    def write(self, tokens: TokenBlocks, piece: KVPiece, parts: Sequence[memoryview]) -> None:
        """It is there."""
