"""What each collective must do. Every rank checks its own results: it knows what the other ranks send."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from tessera.errors import PlatformError
from tessera.ops.tensors import torch_dtype
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device
from tessera.testing.compare import difference
from tessera.testing.conformance.case import ConformanceError, named

_SHAPES = ((7, 13), (1, 1), (0, 5), (3, 0), (130, 3))
_LARGE = (1100, 257)  # more than 64 KiB, and than half a MiB, at which libraries change their algorithm
_EXACT: Mapping[str, int] = MappingProxyType({"float32": 1 << 23, "bfloat16": 1 << 8, "float16": 1 << 11})
"""Up to which whole numbers are exact, by dtype."""


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
        """What a rank brings, on the host: whole numbers that need all bits of the dtype, and whose sums do too."""
        random = torch.Generator().manual_seed(97 * rank + len(shape) + sum(shape))
        most = max(_EXACT.get(self.dtype, 16) // self.size, 1)
        return torch.randint(-most, most + 1, shape, generator=random).to(torch_dtype(self.dtype))

    def laid(self, rank: int, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
        """The same on the device: dense, rows with a stride, and columns before rows."""
        whole = self.brought(rank, shape)
        yield "", whole.clone().to(self.device.target)
        if shape[0] >= _LARGE[0]:
            return  # how it lies has been tried
        wide = torch.zeros(shape[0], shape[1] + 3, dtype=whole.dtype)
        wide[:, : shape[1]] = whole
        yield " with a row stride", wide.to(self.device.target)[:, : shape[1]]
        yield " transposed", whole.T.clone(memory_format=torch.contiguous_format).to(self.device.target).T

    def compare(self, what: str, result: Tensor, expected: Tensor, instead: Tensor | None = None) -> None:
        """instead: the average of the ranks, a mistake to name."""
        self.device.synchronize()
        here = result.cpu()
        text = difference(here, expected, 0.0)
        if text is None:
            return
        if instead is not None and torch.equal(here, instead):
            text = "the average of the ranks, expected the sum"
        said = f"{what}, {self.dtype}, rank {self.rank} of {self.size}: {text}"
        self.wrong.append(ConformanceError(said, named(result=here, expected=expected)))


def all_reduce(group: Group) -> None:
    for shape in (*_SHAPES, _LARGE):
        parts = [group.brought(rank, shape) for rank in range(group.size)]
        total = torch.stack(parts).sum(0).to(parts[0].dtype)
        for how, mine in group.laid(group.rank, shape):
            what = f"all_reduce of {list(shape)}{how}"
            found = group.communicator.all_reduce(mine)
            group.compare(what, found, total, (total / group.size).to(total.dtype))
            if not how:  # calls that return the same memory do so by shape
                group.communicator.all_reduce(torch.ones_like(mine))
                group.compare(f"{what}, after the next call,", found, total)
    _same_bits(group)


def _same_bits(group: Group) -> None:
    """Of a sum that is rounded."""
    random = torch.Generator().manual_seed(group.rank)
    mine = torch.randn(64, 96, generator=random).to(torch_dtype(group.dtype)).to(group.device.target)
    total = group.communicator.all_reduce(mine)
    group.device.synchronize()
    bits = total.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(bits).hexdigest()[:14]
    own = torch.zeros(group.size, len(digest), dtype=mine.dtype)
    own[group.rank] = torch.tensor([int(digit, 16) for digit in digest])  # whole numbers: their sums are exact
    digests = group.communicator.all_reduce(own.to(group.device.target))
    group.device.synchronize()
    if not (digests.cpu() == digests.cpu()[0]).all():
        text = f"all_reduce, {group.dtype}: the ranks do not have the same bits, so they may draw different tokens"
        group.wrong.append(ConformanceError(text))


def all_gather(group: Group) -> None:
    for shape in (*_SHAPES, _LARGE):
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


def send_recv(group: Group) -> None:
    """From rank to rank, and from the last to the first, two transfers at a time."""
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    for shape in (*_SHAPES, _LARGE):
        if 0 in shape:
            continue
        for how, mine in group.laid(group.rank, shape):
            what = f"send and recv of {list(shape)}{how}"
            expected = group.brought(before, shape)
            arrived = [torch.empty_like(expected, device=group.device.target) for _ in range(2)]
            try:
                if group.rank == 0:
                    _send_two(group, mine, after)
                for transfer in [group.communicator.recv(x, before) for x in arrived]:
                    transfer.wait()
                if group.rank > 0:
                    _send_two(group, mine, after)
            except PlatformError as error:  # there is no send(), on any rank
                group.wrong.append(ConformanceError(f"{what}: {error.message}"))
                return
            group.compare(what, arrived[0], expected)
            group.compare(f"{what}, the second of two,", arrived[1], -expected)


def _send_two(group: Group, x: Tensor, to: int) -> None:
    """Of the layout of x."""
    group.communicator.send(x, to)
    group.communicator.send(-x, to)


def new_group(group: Group) -> None:
    """Of all ranks in their own order, and in another one, where each does what shows the order."""
    for order in (range(group.size), range(group.size)[::-1]):
        made = group.communicator.new_group(order, "conformance", {})
        if (made.rank, made.size) != (order.index(group.rank), group.size):
            text = f"new_group of {list(order)}: {group.rank} is rank {made.rank} of {made.size}, "
            group.wrong.append(ConformanceError(f"{text}expected {order.index(group.rank)} of {group.size}"))
            continue
        small = Group(made, group.device, group.dtype, group.wrong)
        for check in (all_reduce, all_gather):
            check(small)


IN_EACH_DTYPE: Mapping[str, Callable[[Group], None]] = MappingProxyType(
    {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "send_recv": send_recv,
    }
)
ONCE: Mapping[str, Callable[[Group], None]] = MappingProxyType({"new_group": new_group})
