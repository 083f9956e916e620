"""The KV cache by tokens, in canonical form, whatever a platform's blocks look like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.platform.attention import KVLayout, Plane
from tessera.platform.runner import CacheGroup, CachePlan, unit_of
from tessera.platform.transfer import ALIGNMENT, KVPiece, LayerFormat, PlaneFormat, TokenBlocks, TokenStore, sections_of
from tessera.runner.kv_memory import CacheMemory, as_words


@dataclass(frozen=True)
class _CanonicalPlane:
    """A plane of one layer as its canonical form has it."""

    # Of the group of its layer.
    group: int
    # [num_blocks, tokens, heads, dim], each perhaps on several axes, or [num_blocks, ...] of a state: a view of the
    # cache, in elements as wide as the bytes that stay side by side.
    blocks: Tensor
    # Of a token, or of a state.
    token_bytes: int

    @classmethod
    def from_plane(cls, plane: Plane, tensor: Tensor, group: int, block_size: int) -> _CanonicalPlane:
        order = plane.canonical_order
        wide = as_words(tensor) if order[-1] == len(plane.axes) - 1 else tensor
        return cls(group, wide.permute(0, *(i + 1 for i in order)), plane.nbytes // block_size)


class _BlockRun(NamedTuple):
    """Whole blocks that follow one another in memory too, or a part of one block. A state is a block of one token."""

    # Its tokens, from the first of the piece on.
    start: int
    end: int
    # Number of the first block.
    block: int
    num_blocks: int
    # Tokens of the block before the part.
    skipped: int


class CacheTokens(TokenStore):
    """Of a cache whose every plane has tokens or a state. Runs of blocks are copied straight between their place in the
    cache and their place in a piece: gathered first, they would be copied twice."""

    def __init__(self, memory: CacheMemory, plan: CachePlan) -> None:
        formats = layer_formats(plan.groups, memory.layouts)
        assert formats is not None, "a plane has no tokens"
        self.layers = formats
        self.unit = unit_of(plan.groups)
        self._device = memory.device
        # By group, [num_blocks, bytes] each.
        self._buffers = memory.buffers
        self.block_format = _block_format(memory, plan)
        # By group: tokens of a block, and of a group of states 0.
        self._sizes = [group.block_size for group in plan.groups]
        groups = {layer: number for number, group in enumerate(plan.groups) for layer in group.layers}
        sections = sections_of(formats)
        # By section, in canonical order.
        self._planes = [
            [
                _CanonicalPlane.from_plane(plane, tensor, groups[form.layer], self._sizes[groups[form.layer]] or 1)
                for form in section.layers
                for plane, tensor in sorted(
                    zip(memory.layouts[form.layer].planes, memory.planes[form.layer], strict=True),
                    key=lambda pair: pair[0].name,
                )
            ]
            for section in sections
        ]
        # By section.
        self._groups = [sorted({plane.group for plane in planes}) for planes in self._planes]
        # By section, of one with a state: bytes of each plane, [num_blocks, bytes].
        self._states = [
            _plane_bytes(memory, groups[section.layers[0].layer], section.layers[0].layer) if section.is_state else []
            for section in sections
        ]

    def enter_thread(self) -> None:
        self._device.enter_thread()

    def holds(self, tokens: TokenBlocks, piece: KVPiece) -> bool:
        for group in self._groups[piece.section]:
            begin, blocks = self._blocks(group, tokens, piece)
            if len(blocks) * (self._sizes[group] or 1) < piece.last - begin or not blocks.all():
                return False
        return True

    def read(self, tokens: TokenBlocks, piece: KVPiece, out: memoryview) -> None:
        runs = {group: self._runs(group, tokens, piece) for group in self._groups[piece.section]}
        for plane, part in self._parts(piece, out):
            size = self._sizes[plane.group] or 1
            for run in runs[plane.group]:
                target = part[run.start * plane.token_bytes : run.end * plane.token_bytes].view(plane.blocks.dtype)
                blocks = plane.blocks[run.block : run.block + run.num_blocks]
                if run.end - run.start == run.num_blocks * size:
                    target.view(blocks.shape).copy_(blocks)
                else:
                    part_of_block = blocks.reshape(size, -1)[run.skipped : run.skipped + run.end - run.start]
                    target.view(part_of_block.shape).copy_(part_of_block)
        self._device.synchronize()

    def write(self, tokens: TokenBlocks, piece: KVPiece, data: memoryview) -> None:
        runs = {group: self._runs(group, tokens, piece) for group in self._groups[piece.section]}
        for plane, part in self._parts(piece, data):
            for run in runs[plane.group]:
                source = part[run.start * plane.token_bytes : run.end * plane.token_bytes].view(plane.blocks.dtype)
                blocks = plane.blocks[run.block : run.block + run.num_blocks]
                blocks.copy_(source.view(blocks.shape))
        self._device.synchronize()

    def memory(self, tokens: TokenBlocks, piece: KVPiece) -> list[memoryview]:
        found = []
        for group in self._groups[piece.section]:
            runs = self._runs(group, tokens, piece)
            for buffer in self._states[piece.section] or self._buffers[group]:
                blocks = buffer.numpy()
                found += [memoryview(blocks[run.block : run.block + run.num_blocks].data).cast("B") for run in runs]
        return found

    def _parts(self, piece: KVPiece, data: memoryview) -> Iterator[tuple[_CanonicalPlane, Tensor]]:
        """Each plane with its part of a piece, [bytes] uint8."""
        whole, place = torch.frombuffer(data, dtype=torch.uint8), 0
        for plane in self._planes[piece.section]:
            nbytes = (piece.last - piece.first) * plane.token_bytes
            yield plane, whole[place : place + nbytes]
            place += nbytes + -nbytes % ALIGNMENT

    def _blocks(self, group: int, tokens: TokenBlocks, piece: KVPiece) -> tuple[int, Array]:
        """The position of the first token of the first block that has tokens of a piece, and all that do, [blocks]
        int32. A state is in a block of its one token."""
        size, blocks = self._sizes[group], tokens.blocks[group]
        if not size:
            units, rest = divmod(piece.last - tokens.start, self.unit)
            return piece.first, blocks[units - 1 : units] if not rest else blocks[:0]
        place = (piece.first - tokens.start) // size
        return tokens.start + place * size, blocks[place : -(-(piece.last - tokens.start) // size)]

    def _runs(self, group: int, tokens: TokenBlocks, piece: KVPiece) -> list[_BlockRun]:
        """The blocks of a group that have tokens of a piece."""
        size, runs, (first, last) = self._sizes[group] or 1, list[_BlockRun](), piece[1:]
        origin, blocks = self._blocks(group, tokens, piece)
        for place, number in enumerate(blocks.tolist()):
            begin = origin + place * size
            start, end = max(begin, first), min(begin + size, last)
            run = _BlockRun(start - first, end - first, number, 1, start - begin)
            before = runs[-1] if runs else run
            follows = run.block == before.block + before.num_blocks
            if follows and end - start == size and before.end - before.start == before.num_blocks * size:
                runs[-1] = _BlockRun(before.start, run.end, before.block, before.num_blocks + 1, 0)
            else:
                runs.append(run)
        return runs


def _plane_bytes(memory: CacheMemory, group: int, layer: int) -> list[Tensor]:
    """Each plane of a layer with a state, [num_blocks, bytes] uint8."""
    pairs = zip(memory.layouts[layer].planes, memory.places[layer], strict=True)
    buffers = memory.buffers[group]
    return [buffers[place.buffer][:, place.start : place.start + plane.nbytes] for plane, place in pairs]


def _block_format(memory: CacheMemory, plan: CachePlan) -> str:
    """TokenStore.block_format."""
    if not all(buffer.is_cpu for buffers in memory.buffers for buffer in buffers):
        return ""
    described = [
        (group.block_size, [(layer, memory.layouts[layer].planes, memory.places[layer]) for layer in group.layers])
        for group in plan.groups
    ]
    return sha256(repr(described).encode()).hexdigest()


def layer_formats(groups: Sequence[CacheGroup], layouts: Mapping[int, KVLayout]) -> tuple[LayerFormat, ...] | None:
    """Of the layers of these groups. layouts: by layer. None if a plane has neither tokens nor a state."""
    found = []
    for group in groups:
        is_state = group.kind == "state"
        for layer in group.layers:
            planes = sorted(layouts[layer].planes, key=lambda plane: plane.name)
            if not is_state and not all(any(name == "token" for name, _ in plane.axes) for plane in planes):
                return None
            formats = tuple(PlaneFormat.from_plane(plane) for plane in planes)
            found.append(LayerFormat(layer, formats, group.window, is_state))
    return tuple(sorted(found, key=attrgetter("layer")))
