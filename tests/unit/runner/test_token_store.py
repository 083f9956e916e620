"""A cache by tokens: what is written into one layout and read from another is what it was, wherever the blocks are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tessera.arrays import int32
from tessera.platform import (
    CacheFormat,
    CacheGroup,
    CacheNeeds,
    CachePlan,
    FullAttentionSpec,
    HostDevice,
    KVLayout,
    KVPiece,
    MemoryFigures,
    Plane,
    TokenBlocks,
)
from tessera.runner.kv_memory import CacheMemory
from tessera.runner.token_store import CacheTokens

HEADS, DIM, TOKENS = 3, 6, 192
ORDERS = {
    "plain": lambda size: (("token", size), ("head", HEADS), ("dim", DIM)),
    "by head": lambda size: (("head", HEADS), ("token", size), ("dim", DIM)),
    "split": lambda size: (("head", HEADS), ("token", size // 8), ("dim", DIM // 2), ("token", 8), ("dim", 2)),
    "pairs": lambda size: (("head", HEADS), ("token", size // 2), ("dim", DIM), ("token", 2)),
}


def layout(order: str, size: int) -> KVLayout:
    """Planes in another order than that of their names, and one of scales that has no dim."""
    axes = ORDERS[order](size)
    scales = Plane("k_scale", "float32", (("head", HEADS), ("token", size)))
    return KVLayout((Plane("v", "int8", axes), scales, Plane("k", "bfloat16", axes)))


def store(order: str, size: int, *, dense: bool = False) -> CacheTokens:
    """Two layers that share blocks, and one in a group of its own with blocks of twice the size."""

    def needs(layer: int) -> CacheNeeds:
        spec = FullAttentionSpec(HEADS, DIM, "bfloat16")
        return CacheNeeds(layer, spec, (size,), True, "int32", 4, lambda tokens: layout(order, tokens), dense)

    def group(layers: tuple[int, ...], tokens: int) -> CacheGroup:
        return CacheGroup(layers, "paged", tokens, len(layers) * (layout(order, tokens).nbytes + 8), 20)

    plan = CachePlan((group((0, 2), size), group((1,), 2 * size)), 1, TOKENS)
    memory = CacheMemory(
        plan, {layer: needs(layer) for layer in range(3)}, HostDevice(torch, MemoryFigures(0, 0, host=True))
    )
    return CacheTokens(memory, plan)


def numbers(num_tokens: int) -> list[np.ndarray]:
    """Each plane of each layer, in canonical order: [tokens, bytes] uint8."""
    chance = np.random.default_rng(7)
    return [
        chance.integers(0, 256, (num_tokens, nbytes), np.uint8)
        for _ in range(3)
        for nbytes in (HEADS * DIM * 2, HEADS * 4, HEADS * DIM)
    ]


def piece(planes: list[np.ndarray], first: int, last: int) -> bytearray:
    data = bytearray()
    for plane in planes:
        data += plane[first:last].tobytes()
        data += bytes(-len(data) % 8)
    return data


def blocks(size: int) -> TokenBlocks:
    """In runs and out of order."""
    return TokenBlocks(
        0, tuple(int32([3, 4, 5, 9, 8, 7, 1, 2, 12, 11, 13, 14][: TOKENS // each]) for each in (size, 2 * size))
    )


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("order", list(ORDERS))
def test_tokens_are_the_same_in_every_layout(order: str, dense: bool) -> None:
    planes, cache, held = numbers(TOKENS), store(order, 16, dense=dense), blocks(16)
    form = CacheFormat("", cache.layers)
    assert cache.unit == 32
    for first, last in ((0, 96), (96, 128), (128, 192)):
        data = piece(planes, first, last)
        assert len(data) == form.most_bytes(last - first)
        cache.write(held, KVPiece(0, first, last), memoryview(data))
    for first, last in ((0, 192), (0, 24), (24, 48), (24, 120), (7, 9), (31, 100), (191, 192)):
        read = bytearray(form.most_bytes(last - first))
        cache.read(held, KVPiece(0, first, last), memoryview(read))
        assert read == piece(planes, first, last), (first, last)


def test_blocks_may_begin_behind_the_first_token() -> None:
    planes, cache = numbers(TOKENS), store("split", 16)
    held = TokenBlocks(64, (int32([5, 6]), int32([2])))
    cache.write(held, KVPiece(0, 64, 96), memoryview(piece(planes, 64, 96)))
    read = bytearray(CacheFormat("", cache.layers).most_bytes(10))
    cache.read(held, KVPiece(0, 70, 80), memoryview(read))
    assert read == piece(planes, 70, 80)
