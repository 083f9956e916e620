"""torch.spyre, over the compiled fakechip."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from torch.accelerator import memory
from torch_fakechip.compiled import (
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
    "_is_in_bad_fork", "current_device", "device_count", "host_clock", "is_available", "manual_seed_all", "memory",
    "set_device", "synchronize",
]  # fmt: skip


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]


def current_stream(device=None):
    return SimpleNamespace(query=torch.accelerator.current_stream(device).query)


torch._register_device_module("spyre", sys.modules[__name__])
