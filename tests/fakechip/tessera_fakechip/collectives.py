"""Collectives of several chips. They are launched like any op: the host goes on, and each chip begins when the last one
is ready. The chip being only pretended, its memory goes over gloo at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tessera.platform import Communicator, WorkerSpec

MOST_SENT = 2
"""Transfers that may be under way."""


def join(spec: WorkerSpec, rendezvous: str) -> Collectives:
    """The group of all workers; rendezvous: a URL at which they meet."""
    dist.init_process_group("gloo", init_method=rendezvous, rank=spec.rank, world_size=spec.world_size)
    return Collectives(dist.group.WORLD, spec.rank, range(spec.world_size))


class Collectives(Communicator):
    """members: of the group, by rank, as numbers of the group that all workers are in. torch numbers them in ascending
    order."""

    def __init__(self, group: Any, rank: int, members: Sequence[int]) -> None:
        self.group, self.rank, self.size, self.members = group, rank, len(members), members
        self.chip = torch.get_device_module("fakechip")
        self.sent: deque[Any] = deque()

    def all_reduce(self, x: Tensor) -> Tensor:
        sums = self._launched(x)
        dist.all_reduce(sums, group=self.group)
        self.chip.memory(x).copy_(sums)
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        own = self._launched(x)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own, group=self.group)
        whole = torch.cat([parts[sorted(self.members).index(member)] for member in self.members], dim)
        gathered = x.new_empty(whole.shape)
        self.chip.memory(gathered).copy_(whole)
        return gathered

    def send(self, x: Tensor, to: int) -> None:
        """Held until it is sent."""
        if len(self.sent) == MOST_SENT:
            self.sent.popleft().wait()
        dense = self.chip.memory(x).clone(memory_format=torch.contiguous_format)
        self.sent.append(dist.isend(dense, group=self.group, dst=self.members[to]))

    def recv(self, x: Tensor, source: int) -> Coming:
        inbox = torch.empty(x.shape, dtype=x.dtype)
        return Coming(self.chip.memory(x), inbox, dist.irecv(inbox, group=self.group, src=self.members[source]))

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Collectives:
        members = [self.members[rank] for rank in ranks]
        group = dist.new_group(members, group_desc=role, use_local_synchronization=True)
        return Collectives(group, list(ranks).index(self.rank), members)

    def close(self) -> None:
        dist.destroy_process_group()

    def _launched(self, x: Tensor) -> Tensor:
        """A dense copy of x, as gloo wants it, for an op that begins when every rank's chip has come to it."""
        index = x.device.index
        begin = torch.tensor(self.chip.end(index), dtype=torch.int64)
        dist.all_reduce(begin, op=dist.ReduceOp.MAX, group=self.group)
        self.chip.launch_collective(index, int(begin))
        return self.chip.memory(x).clone(memory_format=torch.contiguous_format)


class Coming:
    """A transfer, which takes the chip no time."""

    def __init__(self, memory: Tensor, inbox: Tensor, work: Any) -> None:
        self.memory, self.inbox, self.work = memory, inbox, work

    def wait(self) -> None:
        self.work.wait()
        self.memory.copy_(self.inbox)
