"""The KV cache by tokens, in canonical form, whatever a platform's blocks look like."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Plane
from tessera.platform.runner import CachePlan
from tessera.platform.transfer import ALIGNMENT, TokenBlocks, TokenStore, layer_formats
from tessera.runner.kv_memory import CacheMemory


class CacheTokens(TokenStore):
    """Of a cache whose every plane has tokens."""

    def __init__(self, memory: CacheMemory, plan: CachePlan) -> None:
        formats = layer_formats([(layer, layout.planes) for layer, layout in memory.layouts.items()])
        assert formats is not None, "a plane has no tokens"
        self.layers = formats
        self.unit = lcm(*(group.block_size for group in plan.groups))
        self._memory = memory
        self._sizes = [group.block_size for group in plan.groups]
        groups = {layer: number for number, group in enumerate(plan.groups) for layer in group.layers}
        # In canonical order: a plane, its tensor [num_blocks, ...], and the number of its group.
        self._planes: list[tuple[Plane, Tensor, int]] = [
            (plane, tensor, groups[layer])
            for layer in sorted(groups)
            for plane, tensor in sorted(
                zip(memory.layouts[layer].planes, memory.planes[layer], strict=True), key=lambda pair: pair[0].name
            )
        ]

    def enter_thread(self) -> None:
        self._memory.device.enter_thread()

    def read(self, tokens: TokenBlocks, first: int, last: int, out: memoryview) -> None:
        for plane, tensor, group, part in self._parts(last - first, out):
            size = self._sizes[group]
            start, end = first - tokens.start, last - tokens.start
            blocks = self._ids(tokens, group, start // size, -(-end // size))
            stored = tensor[blocks].permute(0, *(i + 1 for i in plane.canonical_order))
            whole = len(blocks) * size == last - first
            # A copy either way: in the first case straight into its place.
            if whole:
                part.view(stored.shape).copy_(stored)
            else:
                skipped = start % size
                part.view(last - first, -1).copy_(
                    stored.flatten(0, _token_axes(plane)).flatten(1)[skipped:][: last - first]
                )
        self._memory.device.synchronize()

    def write(self, tokens: TokenBlocks, first: int, last: int, data: memoryview) -> None:
        for plane, tensor, group, part in self._parts(last - first, data):
            size = self._sizes[group]
            start, end = first - tokens.start, last - tokens.start
            blocks = self._ids(tokens, group, start // size, end // size)
            order = plane.canonical_order
            shape = [plane.shape[i] for i in order]
            back = [0] * len(order)
            for place, axis in enumerate(order):
                back[axis] = place + 1
            tensor[blocks] = part.view(len(blocks), *shape).permute(0, *back).to(tensor.device)
        self._memory.device.synchronize()

    def _ids(self, tokens: TokenBlocks, group: int, first: int, last: int) -> Tensor:
        return torch.from_numpy(tokens.blocks[group][first:last]).to(self._memory.device.target, torch.int64)

    def _parts(self, num_tokens: int, data: memoryview) -> Iterator[tuple[Plane, Tensor, int, Tensor]]:
        """Each plane with its part of a piece."""
        whole, place = torch.frombuffer(data, dtype=torch.uint8), 0
        for plane, tensor, group in self._planes:
            nbytes = num_tokens * (plane.nbytes // self._sizes[group])
            yield plane, tensor, group, whole[place : place + nbytes].view(torch_dtype(plane.dtype))
            place += nbytes + -nbytes % ALIGNMENT


def _token_axes(plane: Plane) -> int:
    """How many axes the tokens of a block are split into."""
    return sum(name == "token" for name, _ in plane.axes)
