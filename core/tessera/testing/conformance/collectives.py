"""What each collective must do. Every rank checks its own results: it knows what the other ranks send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device
from tessera.testing.compare import difference
from tessera.testing.conformance.case import ConformanceError, named

_SHAPES = ((7, 13), (1, 1), (0, 5), (3, 0), (130, 3))


@dataclass(frozen=True)
class Group:
    """A communicator, this rank's device, the dtype of what is sent. wrong: the failures on this rank. A check makes
    all of its calls even so: the other ranks may have none, and wait in the next call."""

    communicator: Communicator
    device: Device
    dtype: str
    wrong: list[ConformanceError] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    def brought(self, rank: int, shape: tuple[int, ...]) -> Tensor:
        """What a rank brings, on the host: whole numbers, whose sums are exact in every dtype."""
        random = torch.Generator().manual_seed(97 * rank + len(shape) + sum(shape))
        return torch.randint(-8, 9, shape, generator=random).to(torch_dtype(self.dtype))

    def laid(self, rank: int, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
        """The same on the device: dense, rows with a stride, and columns before rows."""
        whole = self.brought(rank, shape)
        yield "", whole.clone().to(self.device.target)
        wide = torch.zeros(shape[0], shape[1] + 3, dtype=whole.dtype)
        wide[:, : shape[1]] = whole
        yield " with a row stride", wide.to(self.device.target)[:, : shape[1]]
        yield " transposed", whole.T.clone(memory_format=torch.contiguous_format).to(self.device.target).T

    def compare(self, what: str, found: Tensor, expected: Tensor, instead: Tensor | None = None) -> None:
        """instead: the average of the ranks, a mistake to name."""
        self.device.synchronize()
        here = found.cpu()
        text = difference(here, expected, 0.0)
        if text is None:
            return
        if instead is not None and torch.equal(here, instead):
            text = "the average of the ranks, expected the sum"
        said = f"{what}, {self.dtype}, rank {self.rank} of {self.size}: {text}"
        self.wrong.append(ConformanceError(said, named(result=here, expected=expected)))


def all_reduce(group: Group) -> None:
    for shape in _SHAPES:
        parts = [group.brought(rank, shape) for rank in range(group.size)]
        total = torch.stack(parts).sum(0).to(parts[0].dtype)
        for how, mine in group.laid(group.rank, shape):
            what = f"all_reduce of {list(shape)}{how}"
            found = group.communicator.all_reduce(mine)
            group.compare(what, found, total, (total / group.size).to(total.dtype))
            if not how:  # calls that return the same memory do so by shape
                group.communicator.all_reduce(torch.ones_like(mine))
                group.compare(f"{what}, after the next call,", found, total)


def all_gather(group: Group) -> None:
    for shape in _SHAPES:
        parts = [group.brought(rank, shape) for rank in range(group.size)]
        for how, mine in group.laid(group.rank, shape):
            for dim in (0, 1, -1):
                what, expected = f"all_gather along {dim} of {list(shape)}{how}", torch.cat(parts, dim)
                found = group.communicator.all_gather(mine, dim)
                group.compare(what, found, expected)
                if not how:
                    group.communicator.all_gather(torch.ones_like(mine), dim)
                    group.compare(f"{what}, after the next call,", found, expected)
                group.compare(f"the input of {what}", mine, parts[group.rank])


def broadcast(group: Group) -> None:
    for shape in _SHAPES:
        for source in range(group.size):
            for how, mine in group.laid(group.rank, shape):
                what = f"broadcast from {source} of {list(shape)}{how}"
                expected = group.brought(source, shape)
                group.compare(what, group.communicator.broadcast(mine, source), expected)
                group.compare(f"{what}, which is in place,", mine, expected)


def new_group(group: Group) -> None:
    made = group.communicator.new_group(range(group.size), "conformance", {})
    if (made.rank, made.size) != (group.rank, group.size):
        text = f"new_group: rank {made.rank} of {made.size}, expected {group.rank} of {group.size}"
        group.wrong.append(ConformanceError(text))
    all_reduce(Group(made, group.device, group.dtype, group.wrong))


def agree(group: Group) -> None:
    large = 2**40
    values = group.communicator.agree([group.rank, -group.rank, large + group.rank, 5])
    expected = [group.size - 1, 0, large + group.size - 1, 5]
    if list(values) != expected:
        text = f"agree: it gives {list(values)}, expected the largest of each, {expected}"
        group.wrong.append(ConformanceError(text))


IN_EACH_DTYPE: Mapping[str, Callable[[Group], None]] = MappingProxyType(
    {"all_reduce": all_reduce, "all_gather": all_gather, "broadcast": broadcast}
)
ONCE: Mapping[str, Callable[[Group], None]] = MappingProxyType({"new_group": new_group, "agree": agree})
