"""torch.neuron, over the compiled fakechip."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from torch_fakechip.compiled import (
    _is_in_bad_fork,
    current_device,
    device_count,
    get_amp_supported_dtype,
    host_clock,
    is_available,
    manual_seed_all,
    synchronize,
)
from torch_fakechip.compiled import set_device as _set_device

from torch_neuronx import runtime

__all__ = [
    "_is_in_bad_fork", "current_device", "device_count", "get_amp_supported_dtype", "host_clock", "is_available",
    "manual_seed_all", "synchronize",
]  # fmt: skip


def set_device(device):
    assert 0 <= device < device_count()
    _set_device(device)


def get_device_name(device=0):
    return f"neuron:{device}"


def get_device_properties(device=None):
    runtime.started.set()
    return SimpleNamespace(name=str(device), total_memory=torch.accelerator.get_memory_info(device)[1])


def memory_allocated(device=None):
    return torch.accelerator.memory_allocated(device)


def memory_reserved(device=None):
    return torch.accelerator.memory_reserved(device)


def max_memory_allocated(device=None):
    return torch.accelerator.max_memory_allocated(device)


def reset_peak_memory_stats(device=None):
    torch.accelerator.reset_peak_memory_stats(device)


torch._register_device_module("neuron", sys.modules[__name__])
