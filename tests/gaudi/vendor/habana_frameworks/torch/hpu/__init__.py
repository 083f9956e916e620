"""torch.hpu, over the compiled fakechip."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

import torch

os.environ["TORCH_FAKECHIP_NAME"] = "hpu"

from torch_fakechip import compiled as chip
from torch_fakechip.compiled import (
    current_device,
    device_count,
    host_clock,
    is_available,
    manual_seed_all,
    set_device,
    synchronize,
)

__all__ = [
    "current_device", "device_count", "host_clock", "is_available", "manual_seed_all", "set_device", "synchronize",
]  # fmt: skip

DEVICE_NAME = os.environ.get("HABANA_STAND_IN", "GAUDI3")


def _lazy_init():
    """Torch calls it before it makes a tensor."""


def get_device_name(device=None):
    return DEVICE_NAME


def mem_get_info(device=None):
    return torch.accelerator.get_memory_info(device)


def memory_allocated(device=None):
    return torch.accelerator.memory_allocated(device)


def max_memory_allocated(device=None):
    return torch.accelerator.max_memory_allocated(device)


def reset_peak_memory_stats(device=None):
    torch.accelerator.reset_peak_memory_stats(device)


class HPUGraph:
    def __init__(self):
        self.recorded = chip.Graph()

    def capture_begin(self, dry_run=False):
        self.recorded.__enter__()

    def capture_end(self):
        self.recorded.__exit__()

    def replay(self, asynchronous=False):
        self.recorded.replay()
        if not asynchronous:
            synchronize()


@contextmanager
def graph(hpu_graph, stream=None):
    hpu_graph.capture_begin()
    try:
        yield
    finally:
        hpu_graph.capture_end()


torch._register_device_module("hpu", sys.modules[__name__])
