"""The default communicator: torch.distributed, with the device's own backend if there is one, else through host
memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tessera.platform.collectives import Alone, Communicator
from tessera.platform.device import Device
from tessera.platform.platform import Platform, WorkerSpec

HOST = "gloo"


def join(platform: Platform, spec: WorkerSpec, rendezvous: str, device: Device) -> Communicator:
    """Joins the group of all workers, with the platform's communicator if it has one, else core's. rendezvous: a URL
    where the workers meet; unused for a single worker."""
    if spec.world_size == 1:
        return Alone()
    return platform.communicator(spec, rendezvous) or torch_group(spec, rendezvous, device)


def torch_group(spec: WorkerSpec, rendezvous: str, device: Device) -> TorchCommunicator:
    """The group of all workers over torch.distributed, with the device's default backend, else gloo. The host group
    always uses gloo."""
    own = dist.Backend.default_device_backend_map.get(device.target.type)
    rank, size = spec.rank, spec.world_size
    dist.init_process_group(
        own or HOST, init_method=rendezvous, rank=rank, world_size=size, timeout=timedelta(minutes=5)
    )
    world = dist.group.WORLD
    if own is None:
        return StagedCommunicator(world, rank, size, world, device)
    return TorchCommunicator(world, rank, size, world if own == HOST else dist.new_group(backend=HOST))


class TorchCommunicator(Communicator):
    """A process group whose backend supports the device's tensors. host: a gloo group of the same ranks."""

    def __init__(self, group: Any, rank: int, size: int, host: Any) -> None:
        self.group, self.rank, self.size, self.host = group, rank, size, host

    def all_reduce(self, x: Tensor) -> Tensor:
        dense = x.contiguous()  # gloo ignores strides and treats any tensor as contiguous
        dist.all_reduce(dense, group=self.group)
        return dense

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=dim)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        dense = x.contiguous()
        dist.broadcast(dense, dist.get_global_rank(self.group, source), group=self.group)
        return x if dense is x else x.copy_(dense)

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> TorchCommunicator:
        group = dist.new_group([dist.get_global_rank(self.group, rank) for rank in ranks], group_desc=role)
        host = dist.new_group(list(ranks), backend=HOST)
        return TorchCommunicator(group, list(ranks).index(self.rank), len(ranks), host)

    def agree(self, values: Sequence[int]) -> Sequence[int]:
        agreed = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=self.host)
        return [int(value) for value in agreed]

    def close(self) -> None:
        dist.destroy_process_group()


class StagedCommunicator(TorchCommunicator):
    """For a device without a torch.distributed backend: copies tensors through host memory, so that a chip without
    collectives of its own can still serve on several devices."""

    def __init__(self, group: Any, rank: int, size: int, host: Any, device: Device) -> None:
        super().__init__(group, rank, size, host)
        self.device = device

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.copy_(super().all_reduce(self._staged(x)))

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return super().all_gather(self._staged(x), dim).to(x.device)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return x.copy_(super().broadcast(self._staged(x), source))

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> StagedCommunicator:
        group = super().new_group(ranks, role, options)
        return StagedCommunicator(group.group, group.rank, group.size, group.host, self.device)

    def _staged(self, x: Tensor) -> Tensor:
        copy = x.to("cpu", non_blocking=True)
        self.device.synchronize()
        return copy
