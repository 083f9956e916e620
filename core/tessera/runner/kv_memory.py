"""The memory of the KV cache: how much it may take, and its layout. In each cache group a block is one span of bytes,
with its layers one after another, apart from planes that a backend wants dense or separate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import lcm, prod
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.errors import MemoryBudgetError
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Plane
from tessera.platform.device import Device, MemoryFigures
from tessera.platform.loaded_model import CacheNeeds, MemoryBudget
from tessera.platform.runner import CacheGroup, CachePlan
from tessera.step import BlockCopy

HOST_CACHE_LIMIT = 4 << 30
HOST_CACHE_SHARE = 0.4
HEADROOM = 64
"""One part in so many of a device's memory is left free, because allocators and other processes need some."""


def budget(config: EngineConfig, before: MemoryFigures) -> MemoryBudget:
    """The bytes that this engine may use on one device. before: the device's memory before anything was loaded."""
    total = before.free if before.host else int(before.total * config.cache.memory_utilization)
    return MemoryBudget(total=total, kv=config.cache.memory_bytes)


def refuse_dummy(config: EngineConfig, granted: MemoryBudget, weights: int) -> None:
    """Raises MemoryBudgetError for random weights that do not fit: no file bounds their size, only the numbers in
    config.json. weights: their bytes as a checkpoint would store them; quantizing may make an eighth of that."""
    least_bytes = weights // 8 if config.model.quantization is not None else weights
    if config.model.load_format == "dummy" and least_bytes > granted.total:
        raise MemoryBudgetError(
            f"the random weights take {least_bytes / 2**30:.1f} GiB of the {granted.total / 2**30:.1f} GiB granted; "
            "config.json says how large they are."
        )


def least(budgets: Sequence[MemoryBudget]) -> MemoryBudget:
    """The budget of the device with the least, for all devices of a worker, which hold the same."""
    return min(budgets, key=lambda budget: budget.total)


def cache_bytes(
    config: EngineConfig, granted: MemoryBudget, figures: MemoryFigures, weights: int, workspace: int
) -> int:
    """Bytes for the KV cache on one device: as the user set, else what is left after weights and workspace. If the
    device uses host memory: the smaller of 4 GiB and 40% of what is left, divided by the number of workers. figures:
    the device's, with the weights in it. Raises MemoryBudgetError if the device has too little memory."""
    workers = config.parallel.host_size * config.parallel.data_parallel_size if figures.host else 1
    if granted.kv is not None:
        if granted.kv * workers > figures.free:
            each = " for each worker" if workers > 1 else ""
            raise MemoryBudgetError(
                f"--kv-cache-memory-bytes asks for {granted.kv / 2**30:.1f} GiB{each}, but "
                f"{figures.free / 2**30:.1f} GiB of the device's memory are free; lower it."
            )
        return granted.kv
    if figures.host:
        left = max(granted.total - weights - workspace, 0)
        return int(min(HOST_CACHE_LIMIT, HOST_CACHE_SHARE * left)) // workers
    remaining = granted.remaining(weights, workspace)
    free = figures.free - workspace - figures.total // HEADROOM
    if free <= 0:
        raise MemoryBudgetError(
            f"{max(figures.free, 0) / 2**30:.1f} GiB of the device's memory are free, and a step's workspace takes "
            f"{workspace / 2**30:.1f} GiB; end what else uses the device or lower --max-num-batched-tokens."
        )
    return min(remaining, free)


class PlanePlace(NamedTuple):
    """Where a plane is. buffer: its number among those of the group. start: in bytes, within a block there."""

    buffer: int
    start: int


class CacheMemory:
    """The allocated KV cache. In a shared block each layer starts at its required alignment. needs: by layer. Raises
    MemoryBudgetError if the device has too little memory."""

    def __init__(self, plan: CachePlan, needs: Mapping[int, CacheNeeds], device: Device) -> None:
        self.device = device
        self.layouts = {layer: needs[layer].layout(group.block_size) for group in plan.groups for layer in group.layers}
        # By group: buffers, and separate planes as they are.
        self._parts: list[list[Tensor]] = []
        # The same memory by group, [buffers, num_blocks, ...] for buffers of one size, so that a block is copied in all
        # of them at once, and for each separate plane.
        self.stacks: list[list[Tensor]] = []
        # By layer, with the shapes and dtypes of its layout: separate ones, or views of the buffers; none for a layer
        # without a cache.
        self.planes: list[Sequence[Tensor]] = [()] * (max(self.layouts, default=-1) + 1)
        # Of the planes of each layer.
        self.places: dict[int, list[PlanePlace]] = {}
        with device.arena("kv") as arena:
            for group in plan.groups:
                places = self._lay(group, needs)
                stacks = {
                    nbytes: arena.hold(_stack(number, group.num_blocks, nbytes, device))
                    for nbytes, number in Counter(one for one in places if isinstance(one, int)).items()
                }
                left = {nbytes: iter(stack) for nbytes, stack in stacks.items()}
                parts = [
                    next(left[one]) if isinstance(one, int) else arena.hold(_separate(one, group.num_blocks, device))
                    for one in places
                ]
                separate = [part[None] for part, one in zip(parts, places, strict=True) if isinstance(one, Plane)]
                self._parts.append(parts)
                self.stacks.append([*stacks.values(), *separate])
                for layer in group.layers:
                    found = [parts[place.buffer] for place in self.places[layer]]
                    self.planes[layer] = tuple(found if needs[layer].separate_planes else self._views(layer, found))
        self.nbytes = arena.nbytes

    @property
    def buffers(self) -> list[list[Tensor]]:
        """By group, [num_blocks, bytes] uint8 each: one with the blocks of all layers that share them, and one for each
        dense or separate plane."""
        return [[_as_bytes(part) for part in parts] for parts in self._parts]

    def _lay(self, group: CacheGroup, needs: Mapping[int, CacheNeeds]) -> list[int | Plane]:
        """Places the planes of a group. Returns the bytes of a block in each of its buffers, or the plane that is
        separate."""
        apart = [layer for layer in group.layers if needs[layer].dense_planes or needs[layer].separate_planes]
        shared = [layer for layer in group.layers if layer not in apart]
        sizes: list[int | Plane] = []
        end = 0
        for layer in shared:
            end += -end % needs[layer].align_bytes
            self.places[layer] = []
            for plane in self.layouts[layer].planes:
                self.places[layer].append(PlanePlace(0, end))
                end += plane.nbytes
        if shared:
            sizes.append(end + -end % lcm(*(needs[layer].align_bytes for layer in shared)))
        for layer in apart:
            planes = self.layouts[layer].planes
            self.places[layer] = [PlanePlace(len(sizes) + number, 0) for number in range(len(planes))]
            sizes += planes if needs[layer].separate_planes else [plane.nbytes for plane in planes]
        assert sum(one if isinstance(one, int) else one.nbytes for one in sizes) <= group.block_bytes, (sizes, group)
        return sizes

    def _views(self, layer: int, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        for plane, place, part in zip(self.layouts[layer].planes, self.places[layer], parts, strict=True):
            within = part[:, place.start : place.start + plane.nbytes].view(torch_dtype(plane.dtype))
            yield within.unflatten(1, plane.shape)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copies whole blocks within their group, all layers at once."""
        for copy in copies:
            sources, targets = (self.device.to_device(ids) for ids in (copy.sources, copy.targets))
            for stack in self.stacks[copy.group]:
                words = as_words(stack) if self.device.eager else stack
                words[:, targets] = words[:, sources]


_ALIGNMENT = 256
"""Bytes at which each buffer of a stack begins, as in memory of its own."""


def _stack(number: int, num_blocks: int, block_bytes: int, device: Device) -> Tensor:
    nbytes = num_blocks * block_bytes
    whole = _allocated((number, nbytes + -nbytes % _ALIGNMENT), torch.uint8, device)
    return whole[:, :nbytes].unflatten(1, (num_blocks, block_bytes))


def _separate(plane: Plane, num_blocks: int, device: Device) -> Tensor:
    return _allocated((num_blocks, *plane.shape), torch_dtype(plane.dtype), device)


def _allocated(shape: Sequence[int], dtype: torch.dtype, device: Device) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype, device=device.target)
    except RuntimeError as error:
        raise MemoryBudgetError(
            f"{prod(shape) * dtype.itemsize / 2**30:.1f} GiB for the KV cache could not be allocated; "
            "set a smaller --kv-cache-memory-bytes."
        ) from error


def as_words(stack: Tensor) -> Tensor:
    """The same memory in the widest elements that its blocks consist of, since a device copies one after another."""
    steps = (stack.shape[-1], stack.storage_offset(), *stack.stride()[:-1])
    for word in (torch.int64, torch.int32):
        if stack.itemsize < word.itemsize and all(step * stack.itemsize % word.itemsize == 0 for step in steps):
            return stack.view(word)
    return stack


def _as_bytes(part: Tensor) -> Tensor:
    """[blocks, ...] -> [blocks, bytes]."""
    return part.flatten(1).view(torch.uint8)
