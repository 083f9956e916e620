"""The KV cache by tokens, in canonical form, whatever a platform's blocks look like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import lcm
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.platform.attention import Plane
from tessera.platform.runner import CachePlan
from tessera.platform.transfer import ALIGNMENT, TokenBlocks, TokenStore, layer_formats
from tessera.runner.kv_memory import CacheMemory, as_words


@dataclass(frozen=True)
class _CanonicalPlane:
    """A plane of one layer as its canonical form has it."""

    # Of the group of its layer.
    group: int
    # [num_blocks, tokens, heads, dim], each perhaps on several axes: a view of the cache, in elements as wide as the
    # bytes that stay side by side.
    blocks: Tensor
    token_bytes: int

    @classmethod
    def from_plane(cls, plane: Plane, tensor: Tensor, group: int, block_size: int) -> _CanonicalPlane:
        order = plane.canonical_order
        wide = as_words(tensor) if order[-1] == len(plane.axes) - 1 else tensor
        return cls(group, wide.permute(0, *(i + 1 for i in order)), plane.nbytes // block_size)


class _BlockRun(NamedTuple):
    """Whole blocks that follow one another in memory too, or a part of one block."""

    # Its tokens, from the first of the piece on.
    start: int
    end: int
    # Number of the first block.
    block: int
    num_blocks: int
    # Tokens of the block before the part.
    skipped: int


class CacheTokens(TokenStore):
    """Of a cache whose every plane has tokens. Runs of blocks are copied straight between their place in the cache and
    their place in a piece: gathered first, they would be copied twice."""

    def __init__(self, memory: CacheMemory, plan: CachePlan) -> None:
        formats = layer_formats([(layer, layout.planes) for layer, layout in memory.layouts.items()])
        assert formats is not None, "a plane has no tokens"
        self.layers = formats
        self.unit = lcm(*(group.block_size for group in plan.groups))
        self._device = memory.device
        # By group, [num_blocks, bytes] each.
        self._buffers = memory.buffers
        self.block_format = _block_format(memory, plan)
        self._sizes = [group.block_size for group in plan.groups]
        groups = {layer: number for number, group in enumerate(plan.groups) for layer in group.layers}
        # In canonical order.
        self._planes = [
            _CanonicalPlane.from_plane(plane, tensor, groups[layer], self._sizes[groups[layer]])
            for layer in sorted(groups)
            for plane, tensor in sorted(
                zip(memory.layouts[layer].planes, memory.planes[layer], strict=True), key=lambda pair: pair[0].name
            )
        ]

    def enter_thread(self) -> None:
        self._device.enter_thread()

    def read(self, tokens: TokenBlocks, first: int, last: int, out: memoryview) -> None:
        runs = [self._runs(group, tokens, first, last) for group in range(len(self._sizes))]
        for plane, part in self._parts(last - first, out):
            size = self._sizes[plane.group]
            for run in runs[plane.group]:
                target = part[run.start * plane.token_bytes : run.end * plane.token_bytes].view(plane.blocks.dtype)
                blocks = plane.blocks[run.block : run.block + run.num_blocks]
                if run.end - run.start == run.num_blocks * size:
                    target.view(blocks.shape).copy_(blocks)
                else:
                    part_of_block = blocks.reshape(size, -1)[run.skipped : run.skipped + run.end - run.start]
                    target.view(part_of_block.shape).copy_(part_of_block)
        self._device.synchronize()

    def write(self, tokens: TokenBlocks, first: int, last: int, data: memoryview) -> None:
        runs = [self._runs(group, tokens, first, last) for group in range(len(self._sizes))]
        for plane, part in self._parts(last - first, data):
            for run in runs[plane.group]:
                source = part[run.start * plane.token_bytes : run.end * plane.token_bytes].view(plane.blocks.dtype)
                blocks = plane.blocks[run.block : run.block + run.num_blocks]
                blocks.copy_(source.view(blocks.shape))
        self._device.synchronize()

    def memory(self, tokens: TokenBlocks, first: int, last: int) -> list[memoryview]:
        found = []
        for group, buffers in enumerate(self._buffers):
            runs = self._runs(group, tokens, first, last)
            for buffer in buffers:
                blocks = memoryview(buffer.numpy().data)
                found += [blocks[run.block : run.block + run.num_blocks].cast("B") for run in runs]
        return found

    def _parts(self, num_tokens: int, data: memoryview) -> Iterator[tuple[_CanonicalPlane, Tensor]]:
        """Each plane with its part of a piece, [bytes] uint8."""
        whole, place = torch.frombuffer(data, dtype=torch.uint8), 0
        for plane in self._planes:
            nbytes = num_tokens * plane.token_bytes
            yield plane, whole[place : place + nbytes]
            place += nbytes + -nbytes % ALIGNMENT

    def _runs(self, group: int, tokens: TokenBlocks, first: int, last: int) -> list[_BlockRun]:
        """The blocks of a group that have tokens first to last (exclusive)."""
        size, runs = self._sizes[group], list[_BlockRun]()
        places = range((first - tokens.start) // size, -(-(last - tokens.start) // size))
        numbers = tokens.blocks[group][places.start : places.stop].tolist()
        for place, number in zip(places, numbers, strict=True):
            begin = tokens.start + place * size
            start, end = max(begin, first), min(begin + size, last)
            run = _BlockRun(start - first, end - first, number, 1, start - begin)
            before = runs[-1] if runs else run
            follows = run.block == before.block + before.num_blocks
            if follows and end - start == size and before.end - before.start == before.num_blocks * size:
                runs[-1] = _BlockRun(before.start, run.end, before.block, before.num_blocks + 1, 0)
            else:
                runs.append(run)
        return runs


def _block_format(memory: CacheMemory, plan: CachePlan) -> str:
    """TokenStore.block_format."""
    if not all(buffer.is_cpu for buffers in memory.buffers for buffer in buffers):
        return ""
    described = [
        (group.block_size, [(layer, memory.layouts[layer].planes, memory.places[layer]) for layer in group.layers])
        for group in plan.groups
    ]
    return sha256(repr(described).encode()).hexdigest()
