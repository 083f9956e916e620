"""A process group of the compiled device, for a vendor's backend of torch.distributed: its memory goes over gloo at
once."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions

from torch_fakechip import compiled as chip


class DeviceGroup(dist.ProcessGroup):
    """`Backend.register_backend("hccl", DeviceGroup, devices=["hpu"])`."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Work:
        sums = [_dense(tensor) for tensor in tensors]
        self.gloo.allreduce(sums, options or dist.AllreduceOptions()).wait()
        return _written(tensors, sums)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None) -> Work:
        parts = [[torch.empty_like(_dense(part)) for part in one] for one in outputs]
        self.gloo.allgather(parts, [_dense(tensor) for tensor in inputs], options or AllgatherOptions()).wait()
        return _written([x for one in outputs for x in one], [x for one in parts for x in one])

    def all_gather_single(self, output: Tensor, given: Tensor, options: Any = None) -> Work:
        return self.allgather([list(output.chunk(self.size()))], [given])

    _allgather_base = all_gather_single
    """Its name before torch 2.13."""

    def barrier(self, options: Any = None) -> Work:
        self.gloo.barrier(options or dist.BarrierOptions()).wait()
        return Work()

    def getBackendName(self) -> str:
        return "hccl"


class Work(dist._Work):
    """Done when it was begun."""

    def wait(self, timeout: Any = None) -> bool:
        return True


def _dense(tensor: Tensor) -> Tensor:
    return chip.memory(tensor).clone(memory_format=torch.contiguous_format)


def _written(tensors: list[Tensor], values: list[Tensor]) -> Work:
    for tensor, value in zip(tensors, values, strict=True):
        chip.memory(tensor).copy_(value)
    return Work()
