"""A prompt as a chain of hashes: two prompts have equal hashes exactly as far as they begin with the same blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import MappingProxyType

BLOCK_TOKENS = 64
"""Tokens of a block here, whatever engines use: hashing costs about a microsecond a block."""
MAX_BLOCKS = 512
"""Of one prompt; what follows decides nothing."""
_HASH_BYTES = 8
_NOTHING: Mapping[int, bytes] = MappingProxyType({})


def hashed_blocks(data: bytes, size: int, root: bytes, contents: Mapping[int, bytes] = _NOTHING) -> list[bytes]:
    """The hashes of the whole blocks of `size` bytes. root: equal only for prompts that can share anything. contents:
    by block, what it holds beside data."""
    return list(_links(data, size, root, contents))


def _links(data: bytes, size: int, root: bytes, contents: Mapping[int, bytes]) -> Iterator[bytes]:
    link = root
    for index in range(min(len(data) // size, MAX_BLOCKS)):
        block = data[index * size : (index + 1) * size]
        link = sha256(link + block + contents.get(index, b"")).digest()[:_HASH_BYTES]
        yield link
