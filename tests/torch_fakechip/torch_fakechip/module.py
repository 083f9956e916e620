"""What torch's modules of devices have in common, for a vendor's module over the compiled device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_fakechip.compiled import (
    Graph,
    _is_in_bad_fork,
    current_device,
    device_count,
    host_clock,
    is_available,
    manual_seed_all,
    set_device,
    synchronize,
)

__all__ = [
    "Graph", "_is_in_bad_fork", "capturing", "current_device", "device_count", "host_clock", "is_available",
    "manual_seed_all", "max_memory_allocated", "mem_get_info", "memory_allocated", "reset_peak_memory_stats",
    "set_device", "synchronize",
]  # fmt: skip


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return torch.accelerator.get_memory_info(device)


def memory_allocated(device: Any = None) -> int:
    return torch.accelerator.memory_allocated(device)


def max_memory_allocated(device: Any = None) -> int:
    return torch.accelerator.max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    torch.accelerator.reset_peak_memory_stats(device)


@contextmanager
def capturing(graph: Any) -> Iterator[None]:
    """Records what is launched, by the capture_begin() and capture_end() of a vendor's graph."""
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()
