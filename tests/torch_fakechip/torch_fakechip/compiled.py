"""The compiled device, as torch.fakechip, or under the name of another device, whose module a vendor's extension of
torch registers then."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch

from torch_fakechip.build import library

KIND = "compiled"
NAME = os.environ.get("TORCH_FAKECHIP_NAME", "fakechip")
"""Of the device: one in a process. "hpu" has a key of its own in torch; all others are PrivateUse1."""

torch.ops.load_library(library("HPU" if NAME == "hpu" else "PrivateUse1"))
_ops = torch.ops.fakechip


# ---- what torch asks of a device's module ----------------------------------------------------------------------------


def is_available() -> bool:
    return True


def device_count() -> int:
    return 2


def current_device() -> int:
    index: int = _ops.current_device()
    return index


def set_device(device: Any) -> None:
    _ops.set_device(device if isinstance(device, int) else torch.device(device).index or 0)


def synchronize(device: Any = None) -> None:
    torch.accelerator.synchronize(device)


def manual_seed_all(seed: int) -> None:
    """Its random numbers are the host's."""


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


# ---- what the device counted -----------------------------------------------------------------------------------------


def reads() -> dict[str, int]:
    """Reads of the device that made the host wait, by what made them."""
    return _counts(_ops.reads())


def waits() -> dict[str, int]:
    """How often the host waited for a device, by what made it wait; not counted where the device was done already."""
    return _counts(_ops.waits())


def copies() -> int:
    """Copies to the host that did not wait (non_blocking)."""
    number: int = _ops.copies()
    return number


def ops() -> dict[str, int]:
    """Ops that the device computed on the host's kernels."""
    return _counts(_ops.ops())


def allocated(index: int) -> int:
    """Bytes that a device gave out since the process began."""
    nbytes: int = _ops.allocated(index)
    return nbytes


def reset() -> None:
    """Counts reads, waits, copies and ops from 0 again."""
    _ops.reset()


@contextmanager
def refused_reads() -> Iterator[None]:
    """An implicit read is an error where it happens."""
    _ops.refuse_reads(True)
    try:
        yield
    finally:
        _ops.refuse_reads(False)


@contextmanager
def only_ops(names: Sequence[str]) -> Iterator[None]:
    """Any other op ("aten::add") is an error."""
    _ops.allow(list(names))
    try:
        yield
    finally:
        _ops.allow_all()


def _counts(lines: str) -> dict[str, int]:
    return {name: int(count) for name, count in (line.split("\t") for line in lines.splitlines())}


# ---- clocks: an op takes 50 us of the device, a copy 5 us; the host's work takes what the host says ------------------


class _HostClock:
    """The calling thread's time, as the module `time` has it. It moves when the thread waits for a device and when it
    says that it works: sleep() takes no time of the machine."""

    def monotonic(self) -> float:
        return float(_ops.host_time()) / 1e9

    def sleep(self, seconds: float) -> None:
        _ops.work(round(seconds * 1e9))


host_clock = _HostClock()


def busy(index: int) -> float:
    """Seconds that a device has computed and copied since the process began."""
    return float(_ops.busy(index)) / 1e9


# ---- for collectives -------------------------------------------------------------------------------------------------


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of the host, which is only there as long as the other one is. To read it is no wait:
    as if the device did it."""
    alias: torch.Tensor = _ops.memory(tensor)
    return alias


def end(index: int) -> int:
    """The time, in ns, at which a device will be done with what was launched."""
    time: int = _ops.end(index)
    return time


def launch_collective(index: int, time: int) -> None:
    """Launches an op that does not begin before a time, in ns."""
    _ops.launch_collective(index, time)


# ---- captured launches -----------------------------------------------------------------------------------------------


class Graph:
    """`with graph: ...` records what is launched; replay() launches it again over the same memory."""

    _number: int | None = None

    def __enter__(self) -> Self:
        _ops.begin_capture()
        return self

    def __exit__(self, *_: object) -> None:
        self._number = _ops.end_capture()

    def replay(self) -> None:
        _ops.replay(self._number)

    def pool(self) -> None:
        """Graphs share no memory here."""

    def __del__(self) -> None:
        if self._number is not None:
            _ops.drop_graph(self._number)


if NAME != "hpu":
    torch.utils.rename_privateuse1_backend(NAME)
if NAME == "fakechip":
    torch._register_device_module(NAME, sys.modules[__name__])
