"""The default communicator: torch.distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tessera.platform.collectives import Alone, Communicator
from tessera.platform.platform import Platform, WorkerSpec


class TorchCommunicator(Communicator):
    """A process group; rendezvous: a URL that torch.distributed knows. The host's groups use gloo, a device's its own
    default."""

    def __init__(self, group: Any, rank: int, size: int, host: Any) -> None:
        self.group, self.rank, self.size, self.host = group, rank, size, host

    @classmethod
    def join(cls, rendezvous: str, rank: int, size: int, device: torch.device) -> TorchCommunicator:
        backend = dist.get_default_backend_for_device(device)
        dist.init_process_group(
            backend, init_method=rendezvous, rank=rank, world_size=size, timeout=timedelta(minutes=5)
        )
        host = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo")
        return cls(dist.group.WORLD, rank, size, host)

    def all_reduce(self, x: Tensor) -> Tensor:
        dense = x.contiguous()  # gloo takes the rows of another for one after the other, and writes so
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
        host = dist.new_group(list(ranks), backend="gloo")
        return TorchCommunicator(group, list(ranks).index(self.rank), len(ranks), host)

    def agree(self, values: Sequence[int]) -> Sequence[int]:
        agreed = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=self.host)
        return [int(value) for value in agreed]

    def close(self) -> None:
        dist.destroy_process_group()


def join(platform: Platform, spec: WorkerSpec, rendezvous: str, target: Any) -> Communicator:
    """The group of all workers, seen from one of them: the platform's own, else core's. rendezvous: a URL where they
    meet; unused where there is one. target: the device that tensors are on."""
    if spec.world_size == 1:
        return Alone()
    own = platform.communicator(spec, rendezvous)
    return own or TorchCommunicator.join(rendezvous, spec.rank, spec.world_size, target)
