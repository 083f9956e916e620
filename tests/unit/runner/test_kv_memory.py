"""A block is one span of bytes: its layers side by side, each where its alignment lets it begin, or with planes of
their own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tessera.arrays import int32
from tessera.platform import (
    CacheGroup,
    CacheNeeds,
    CachePlan,
    FullAttentionSpec,
    HostDevice,
    KVLayout,
    MemoryFigures,
    Plane,
)
from tessera.platform.transfer import CacheFormat, KVPiece, TokenBlocks
from tessera.runner import kv_memory
from tessera.runner.kv_memory import CacheMemory
from tessera.runner.token_store import CacheTokens
from tessera.step import BlockCopy

DEVICE = HostDevice(torch, MemoryFigures(0, 0, host=True))
SPEC = FullAttentionSpec(3, 5, "bfloat16")


def layout(block_size: int) -> KVLayout:
    axes = (("head", 3), ("token", block_size), ("dim", 5))
    return KVLayout((Plane("k", "bfloat16", axes), Plane("v", "bfloat16", axes)))


def memory(align: int, dense: Sequence[int] = (), separate: Sequence[int] = ()) -> tuple[CacheMemory, CacheGroup]:
    needs = {
        layer: CacheNeeds(layer, SPEC, (7,), True, "int32", align, layout, layer in dense, layer in separate)
        for layer in (0, 1)
    }
    each = -(-layout(7).nbytes // align) * align
    group = CacheGroup((0, 1), "paged", 7, 2 * each, 6, None)
    return CacheMemory(CachePlan((group,), 4, 35), needs, DEVICE), group


def test_each_layer_begins_where_its_alignment_lets_it() -> None:
    assert layout(7).nbytes % 64 != 0
    cache, group = memory(64)
    assert [cache.places[layer][0].start for layer in (0, 1)] == [0, group.block_bytes // 2]
    base = cache.buffers[0][0].data_ptr()
    for layer in (0, 1):
        assert (cache.planes[layer][0].data_ptr() - base) % 64 == 0
        assert cache.planes[layer][0].stride(0) * 2 == group.block_bytes


@pytest.mark.parametrize("dense", [(), (0, 1), (0,), (1,)])
def test_layers_and_planes_do_not_overlap(dense: Sequence[int]) -> None:
    for align in (1, 64):
        cache, _ = memory(align, dense)
        planes = [plane for layer in (0, 1) for plane in cache.planes[layer]]
        for number, plane in enumerate(planes):
            plane.fill_(number + 1)
        assert [set(plane.flatten().tolist()) for plane in planes] == [{1.0}, {2.0}, {3.0}, {4.0}]


@pytest.mark.parametrize("dense", [(0, 1), (0,), (1,)])
def test_planes_are_contiguous_on_request(dense: Sequence[int]) -> None:
    cache, group = memory(64, dense)
    for layer in (0, 1):
        assert [plane.is_contiguous() for plane in cache.planes[layer]] == [layer in dense] * 2
        assert layer not in dense or not any(plane.data_ptr() % 64 for plane in cache.planes[layer])
    assert cache.nbytes <= group.block_bytes * group.num_blocks


@pytest.mark.parametrize("separate", [(0, 1), (0,), (1,)])
def test_separate_planes_share_memory_with_nothing(separate: Sequence[int]) -> None:
    cache, group = memory(1, separate=separate)
    own = [plane for layer in separate for plane in cache.planes[layer]]
    assert all(plane.is_contiguous() and plane._base is None for plane in own)
    others = [plane for layer in {0, 1}.difference(separate) for plane in cache.planes[layer]]
    storages = {plane.untyped_storage().data_ptr() for plane in [*own, *others]}
    assert len(storages) == len(own) + bool(others)
    assert cache.nbytes <= group.block_bytes * group.num_blocks + 512


@pytest.mark.parametrize("dense", [(), (0, 1), (0,), (1,)])
@pytest.mark.parametrize("separate", [(), (1,), (0, 1)])
def test_blocks_are_copied_and_read_with_all_their_layers(dense: Sequence[int], separate: Sequence[int]) -> None:
    cache, group = memory(64, dense, separate)
    numbers = torch.arange(6 * 3 * 7 * 5, dtype=torch.float32).reshape(6, 3, 7, 5) % 251
    for layer in (0, 1):
        for place, plane in enumerate(cache.planes[layer]):
            plane.copy_(numbers + 2 * layer + place)
    cache.copy([BlockCopy(0, int32([1, 2]), int32([4, 5]))])
    if not separate:
        assert len(cache.stacks[0]) == (1 if len(dense) != 1 else 2)  # what is not dense has blocks of another size
    plan = CachePlan((group,), 4, 35)
    read = bytearray(CacheFormat("", CacheTokens(cache, plan).layers).most_bytes(14))
    CacheTokens(cache, plan).read(TokenBlocks(0, (int32([5, 1]),)), KVPiece(0, 0, 14), memoryview(read))
    each = 14 * 3 * 5  # numbers of a plane; two bytes each, and none to fill up to a multiple of eight
    padded = each * 2 + -each * 2 % 8
    for plane, (layer, place) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        expected = torch.cat([(numbers[block] + 2 * layer + place).transpose(0, 1) for block in (2, 1)])
        found = torch.frombuffer(read, dtype=torch.bfloat16, count=each, offset=plane * padded)
        assert torch.equal(found.view(14, 3, 5), expected.to(torch.bfloat16))


@pytest.mark.parametrize(("nbytes", "word"), [(16, torch.int64), (12, torch.int32), (10, torch.uint8)])
def test_blocks_are_copied_in_the_widest_words_that_they_consist_of(nbytes: int, word: torch.dtype) -> None:
    """A device copies elements one after another: bytes at an eighth of the speed of words of eight."""
    blocks = torch.arange(2 * 4 * nbytes, dtype=torch.uint8).reshape(2, 4, nbytes)
    words = kv_memory.as_words(blocks)
    assert (words.dtype, words.shape[:2]) == (word, blocks.shape[:2])
    words[:, [3]] = words[:, [1]]
    assert torch.equal(blocks[:, 3], blocks[:, 1])
