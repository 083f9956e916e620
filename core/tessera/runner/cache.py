"""The memory of the caches: a group's blocks are one buffer, a block one span of bytes with its layers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tessera.errors import MemoryBudgetError
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import KVLayout
from tessera.platform.device import Device
from tessera.platform.runner import CacheGroup, CacheNeeds, CachePlan
from tessera.step import BlockCopy


class CacheMemory:
    """needs: by layer. buffers: by group [num_blocks, block_bytes] uint8. planes: by layer, views of them as its layout
    says, where its alignment lets it begin."""

    def __init__(self, plan: CachePlan, needs: Mapping[int, CacheNeeds], device: Device) -> None:
        self.layouts: dict[int, KVLayout] = {}
        self.starts: dict[int, int] = {}
        self.buffers: list[Tensor] = []
        self.planes: list[Sequence[Tensor]] = [()] * sum(len(group.layers) for group in plan.groups)
        with device.arena("kv") as arena:
            for group in plan.groups:
                buffer = _bytes(group, device)
                self.buffers.append(arena.hold(buffer))
                self._lay(group, buffer, needs)
        self.nbytes = arena.nbytes

    def _lay(self, group: CacheGroup, buffer: Tensor, needs: Mapping[int, CacheNeeds]) -> None:
        start = 0
        for layer in group.layers:
            self.layouts[layer] = needs[layer].layout(group.block_size)
            start += -start % needs[layer].align_bytes
            self.starts[layer] = start
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
        parts = []
        for layer in group.layers:
            layout, start = self.layouts[layer], self.starts[layer]
            parts.append(torch.from_numpy(layout.export(data[:, start : start + layout.nbytes])))
        return torch.cat(parts, dim=1)


def _bytes(group: CacheGroup, device: Device) -> Tensor:
    try:
        return torch.empty(group.num_blocks, group.block_bytes, dtype=torch.uint8, device=device.target)
    except RuntimeError as error:
        raise MemoryBudgetError(
            f"{group.num_blocks * group.block_bytes / 2**30:.1f} GiB for the KV cache cannot be had; "
            "lower --kv-cache-memory-bytes."
        ) from error
