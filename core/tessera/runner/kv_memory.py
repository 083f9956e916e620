"""The memory of the KV cache: how much it may take, and its layout. Each cache group is one buffer; each block is one
span of bytes, with its layers one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.errors import MemoryBudgetError
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import KVLayout
from tessera.platform.device import Device, MemoryFigures
from tessera.platform.runner import CacheGroup, CacheNeeds, CachePlan, MemoryBudget
from tessera.step import BlockCopy

HOST_CACHE_LIMIT = 4 << 30
HOST_CACHE_SHARE = 0.4
HEADROOM = 64
"""One part in so many of a device's memory is left free, because allocators and other processes need some."""


def budget(config: EngineConfig, before: MemoryFigures) -> MemoryBudget:
    """The bytes that this engine may use on one device. before: the device's memory before anything was loaded."""
    total = before.free if before.host else int(before.total * config.cache.memory_utilization)
    return MemoryBudget(total=total, kv=config.cache.memory_bytes)


def least(budgets: Sequence[MemoryBudget]) -> MemoryBudget:
    """The budget of the device with the least, for all devices of a worker, which hold the same."""
    return min(budgets, key=lambda one: one.total)


def cache_bytes(
    config: EngineConfig, granted: MemoryBudget, figures: MemoryFigures, weights: int, workspace: int
) -> int:
    """Bytes for the KV cache on one device: as the user set, else what is left after weights and workspace. If the
    device uses host memory: the smaller of 4 GiB and 40% of what is left, divided by the number of workers. figures:
    the device's, with the weights in it. Raises MemoryBudgetError if the device has too little memory."""
    workers = config.parallel.world_size if figures.host else 1
    if granted.kv is not None:
        if granted.kv * workers > figures.free:
            each = " for each worker" if workers > 1 else ""
            raise MemoryBudgetError(
                f"--kv-cache-memory-bytes asks for {granted.kv / 2**30:.1f} GiB{each}, but "
                f"{figures.free / 2**30:.1f} GiB of the device's memory are free; lower it."
            )
        return granted.kv
    left = granted.total - weights - workspace
    if figures.host:
        return int(min(HOST_CACHE_LIMIT, HOST_CACHE_SHARE * max(left, 0))) // workers
    if left <= 0:
        raise MemoryBudgetError(
            f"the weights take {weights / 2**30:.1f} GiB and a step's workspace {workspace / 2**30:.1f} GiB of the "
            f"{granted.total / 2**30:.1f} GiB granted, which leaves nothing for the KV cache; raise "
            "--gpu-memory-utilization, lower --max-num-batched-tokens or use more devices."
        )
    free = figures.free - workspace - figures.total // HEADROOM
    if free <= 0:
        raise MemoryBudgetError(
            f"{max(figures.free, 0) / 2**30:.1f} GiB of the device's memory are free, and a step's workspace takes "
            f"{workspace / 2**30:.1f} GiB; end what else uses the device or lower --max-num-batched-tokens."
        )
    return min(left, free)


class CacheMemory:
    """The allocated KV cache. needs: by layer. buffers: one per group, [num_blocks, block_bytes] uint8. planes: by
    layer, views of the buffers with the shapes and dtypes of its layout. Each layer starts at its required
    alignment. Raises MemoryBudgetError if the device has too little memory."""

    def __init__(self, plan: CachePlan, needs: Mapping[int, CacheNeeds], device: Device) -> None:
        self.device = device
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
        """Copies whole blocks within their group, all layers at once."""
        for copy in copies:
            buffer = self.buffers[copy.group]
            sources, targets = (self.device.to_device(ids.astype("int64")) for ids in (copy.sources, copy.targets))
            buffer[targets] = buffer[sources]

    def export(self, group: CacheGroup, number: int, blocks: Tensor) -> Tensor:
        """The content of n blocks of a group in canonical form: [n, bytes] uint8 on the host, layers in order."""
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
            f"{group.num_blocks * group.block_bytes / 2**30:.1f} GiB for the KV cache could not be allocated; "
            "set a smaller --kv-cache-memory-bytes."
        ) from error
