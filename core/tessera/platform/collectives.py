"""Collectives of one group of workers, and what one of its workers sends to another. A ready-made class for backends of
torch.distributed; torch is passed in, because tessera.platform itself never imports it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, Self

from tessera.errors import PlatformError
from tessera.platform.device import Tensor

_MOST_SENT = 2
"""Transfers to one rank that may be under way: what one launch of a pipeline stage passes on, so that the stage can
compute the next one meanwhile."""


class Transfer(Protocol):
    """A tensor that is on its way to this rank."""

    def wait(self) -> Any:
        """What is launched from here on finds the tensor received. On an asynchronous device the host goes on."""


class Communicator(ABC):
    """A group of workers. rank, size: within the group. capturable: its collectives may be part of a captured graph.
    Collectives are launched like ops, by all ranks in the same order."""

    rank: int
    size: int
    capturable: bool = False

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the group, with the same bits on every rank, whatever the order of the sum: ranks draw the same
        tokens from it. May write it into x and return x."""

    @abstractmethod
    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The tensors of all ranks, concatenated along dim in rank order."""

    @abstractmethod
    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        """A group of some ranks of this group, called by these alone. ranks: numbers in this group, in the order of the
        new one; every member passes the same. role: its purpose, such as "tensor", for logs. options: of the underlying
        library; unknown ones are ignored."""

    def send(self, x: Tensor, to: int) -> None:
        """Starts to send x to a rank, which receives it with recv(). The caller never writes to x again. Does not wait
        for the receiver, but may wait for what was sent to it before. Not part of a captured graph. Default: raises
        PlatformError."""
        raise PlatformError(_no_stages(self))

    def recv(self, x: Tensor, source: int) -> Transfer:
        """Starts to receive from a rank into x, which is dense and has the shape and dtype of what is sent. Returns at
        once. What one rank sends to another arrives in order, and several transfers may be under way. Default: raises
        PlatformError."""
        raise PlatformError(_no_stages(self))

    def close(self) -> None:
        """Called at the end, for the group of all workers alone. Default: nothing."""


def _no_stages(communicator: Communicator) -> str:
    return (
        f"{type(communicator).__name__} has no send() and recv(), which stages need; remove --pipeline-parallel-size."
    )


class Alone(Communicator):
    """A group of one."""

    rank, size, capturable = 0, 1, True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        return self


class TorchCommunicator(Communicator):
    """A process group of torch.distributed whose backend takes the device's tensors. places: the number that each rank
    has in torch's group, which numbers its members in ascending order; None: the same.

        def communicator(self, spec, device, rendezvous):
            return TorchCommunicator.join(torch, "mychipccl", rendezvous, spec.rank, spec.world_size, capturable=True)
    """

    def __init__(
        self, torch: Any, group: Any, *, capturable: bool = False, places: Sequence[int] | None = None
    ) -> None:
        self.torch, self.group, self.capturable = torch, group, capturable
        self.places, self.size = places, torch.distributed.get_world_size(group)
        own = torch.distributed.get_rank(group)
        self.rank = own if places is None else places.index(own)
        self._sent: dict[int, deque[Any]] = {}  # held, since gloo drops what nobody holds any more before it is sent

    @classmethod
    def join(cls, torch: Any, backend: str, rendezvous: str, rank: int, size: int, *, capturable: bool = False) -> Self:
        """The group of all workers, as one of them: called in each. backend: its name in torch.distributed.
        capturable: the backend's collectives may be part of a captured graph."""
        dist = torch.distributed
        limit = timedelta(minutes=5)
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=size, timeout=limit)
        return cls(torch, dist.group.WORLD, capturable=capturable)

    def all_reduce(self, x: Tensor) -> Tensor:
        dense = x.contiguous()  # gloo ignores strides
        self.torch.distributed.all_reduce(dense, group=self.group)
        return dense

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """One tensor receives all, since torch would copy a list of them once more."""
        gathered = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        self.torch.distributed.all_gather_into_tensor(gathered, x.contiguous(), group=self.group)
        return self._along(gathered, dim)

    def send(self, x: Tensor, to: int) -> None:
        sent = self._sent.setdefault(to, deque())
        if len(sent) == _MOST_SENT:
            sent.popleft().wait()
        sent.append(self.torch.distributed.isend(x.contiguous(), group=self.group, group_dst=self._place(to)))

    def recv(self, x: Tensor, source: int) -> Transfer:
        transfer: Transfer = self.torch.distributed.irecv(x, group=self.group, group_src=self._place(source))
        return transfer

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        dist = self.torch.distributed
        members = [dist.get_global_rank(self.group, self._place(rank)) for rank in ranks]
        places = [sorted(members).index(member) for member in members]
        group = dist.new_group(members, group_desc=role, use_local_synchronization=True)
        ascending = places == sorted(places)
        return type(self)(self.torch, group, capturable=self.capturable, places=None if ascending else places)

    def _place(self, rank: int) -> int:
        """The number of a rank in torch's group."""
        return rank if self.places is None else self.places[rank]

    def _along(self, gathered: Tensor, dim: int) -> Tensor:
        """What was gathered along the first dimension, in the order of torch's group, concatenated along dim in the
        order of ranks."""
        if dim == 0 and self.places is None:
            return gathered
        parts = gathered.chunk(self.size)
        return self.torch.cat(parts if self.places is None else [parts[place] for place in self.places], dim=dim)

    def close(self) -> None:
        self.torch.distributed.destroy_process_group()


class FunctionalCommunicator(TorchCommunicator):
    """As TorchCommunicator, but sums and gathers are functional collectives of torch.distributed, which a compiler of
    torch.compile finds in what it compiles: for CompiledGraphs, with capturable=True."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._done("all_reduce", x.contiguous(), "sum")

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return self._along(self._done("all_gather_into_tensor", x.contiguous(), self.size), dim)

    def _done(self, name: str, x: Tensor, *options: Any) -> Tensor:
        ops = self.torch.ops._c10d_functional  # noqa: SLF001  # the library's name, to which compilers are written
        return ops.wait_tensor(getattr(ops, name)(x, *options, self.group.group_name))
