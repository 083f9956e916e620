"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from importlib import import_module

import torch

from tessera.platform import DeviceInfo, Probe

DEVICE = "fakechip"


def native() -> Probe:
    return _found(100, "own kernels and attention")


def static() -> Probe:
    return _found(80, "launches of a few shapes, captured")


def bronze() -> Probe:
    return _found(50, "reference ops")


def _found(score: int, how: str) -> Probe:
    try:
        import_module("torch_fakechip")
    except ModuleNotFoundError as error:
        return Probe(0, f"{error.name} is not installed")
    found = torch.accelerator.current_accelerator()
    if found is None or found.type != DEVICE or not torch.accelerator.device_count():
        return Probe(0, f"torch finds no {DEVICE} here")
    devices = tuple(DeviceInfo(f"{DEVICE}:{index}", index) for index in range(torch.accelerator.device_count()))
    return Probe(score, f"torch's {DEVICE} through {how}", devices)
