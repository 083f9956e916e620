"""The memory of the caches: a group's blocks are one buffer, a block one span of bytes with its layers side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tessera.errors import MemoryBudgetError
from tessera.platform.attention import KVLayout
from tessera.platform.platform import Device
from tessera.platform.runner import CacheGroup, CachePlan
from tessera.reference.dtypes import torch_dtype
from tessera.step import BlockCopy


class CacheMemory:
    """buffers: by group [num_blocks, block_bytes] uint8, not touched until they are used. planes: by layer, views of
    them as its layout says."""

    def __init__(self, plan: CachePlan, layout: Callable[[int, int], KVLayout], device: Device) -> None:
        self.layouts: dict[int, KVLayout] = {}
        self.buffers: list[Tensor] = []
        self.planes: list[Sequence[Tensor]] = [()] * sum(len(group.layers) for group in plan.groups)
        with device.arena("kv") as arena:
            for group in plan.groups:
                buffer = _bytes(group, device)
                self.buffers.append(arena.hold(buffer))
                self._lay(group, buffer, layout)
        self.nbytes = arena.nbytes

    def _lay(self, group: CacheGroup, buffer: Tensor, layout: Callable[[int, int], KVLayout]) -> None:
        start = 0
        for layer in group.layers:
            self.layouts[layer] = layout(layer, group.block_size)
            planes = []
            for plane in self.layouts[layer].planes:
                part = buffer[:, start : start + plane.nbytes].view(torch_dtype(plane.dtype))
                planes.append(part.unflatten(1, plane.shape))
                start += plane.nbytes
            self.planes[layer] = tuple(planes)
        assert start <= group.block_bytes, (start, group)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Whole blocks within a group, all layers at once."""
        for copy in copies:
            buffer = self.buffers[copy.group]
            sources, targets = (
                torch.from_numpy(ids.astype("int64")).to(buffer.device) for ids in (copy.sources, copy.targets)
            )
            buffer[targets] = buffer[sources]

    def export(self, group: CacheGroup, number: int, blocks: Tensor) -> Tensor:
        """Blocks of a group in canonical form: [n, bytes] uint8 on the host, layers in order."""
        data = self.buffers[number][blocks.to(self.buffers[number].device)].cpu().numpy()
        parts, start = [], 0
        for layer in group.layers:
            layout = self.layouts[layer]
            parts.append(torch.from_numpy(layout.export(data[:, start : start + layout.nbytes])))
            start += layout.nbytes
        return torch.cat(parts, dim=1)


def _bytes(group: CacheGroup, device: Device) -> Tensor:
    try:
        return torch.empty(group.num_blocks, group.block_bytes, dtype=torch.uint8, device=device.target)
    except RuntimeError as error:
        raise MemoryBudgetError(
            f"{group.num_blocks * group.block_bytes / 2**30:.1f} GiB for the KV cache cannot be had; "
            "lower --kv-cache-memory-bytes."
        ) from error
