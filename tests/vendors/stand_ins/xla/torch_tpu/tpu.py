"""torch.tpu, over the compiled fakechip. What torch.accelerator has too is for torch alone: torch-tpu refuses it to
others."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import torch
from torch_fakechip import compiled
from torch_fakechip.compiled import _is_in_bad_fork, get_amp_supported_dtype, host_clock, manual_seed_all

__all__ = ["_is_in_bad_fork", "get_amp_supported_dtype", "host_clock", "manual_seed_all"]


def for_torch_alone(function):
    @functools.wraps(function)
    def checked(*arguments):
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.partition(".")[0] not in ("torch", "torch_fakechip"):
            raise RuntimeError(f"{caller} asked torch.tpu.{function.__name__}: use torch.accelerator")
        return function(*arguments)

    return checked


current_device = for_torch_alone(compiled.current_device)
device_count = for_torch_alone(compiled.device_count)
is_available = for_torch_alone(compiled.is_available)
set_device = for_torch_alone(compiled.set_device)
synchronize = for_torch_alone(compiled.synchronize)


def get_device_properties(device=None):
    return SimpleNamespace(name="TPU v6e", total_memory=torch.accelerator.get_memory_info(device)[1])


torch._register_device_module("tpu", sys.modules[__name__])
