"""An opened device of JAX."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import torch

from tessera.platform import Device, Future, MemoryFigures, Ready


class JaxDevice(Device):
    """target: where core builds weights before the runner moves them, which is the host's memory."""

    target = "cpu"

    def __init__(self, device: Any) -> None:
        self.device, self.name = device, f"{device.device_kind} ({device.platform})"

    def memory(self) -> MemoryFigures:
        said = self.device.memory_stats()
        if said is None or "bytes_limit" not in said:  # JAX's CPU does not say
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return MemoryFigures(total=total, free=total // 2, host=True)
        return MemoryFigures(total=said["bytes_limit"], free=said["bytes_limit"] - said["bytes_in_use"])

    def synchronize(self) -> None:
        """A device runs what it is given in order."""
        jax.device_put(np.int32(0), self.device).block_until_ready()

    def to_device(self, values: Any, out: Any = None) -> Any:
        """Into `target`: what features keep there, the runner copies on."""
        made = torch.tensor(values)
        return made if out is None else out.copy_(made)

    def to_host(self, tensor: Any) -> Future[Any]:
        if not isinstance(tensor, jax.Array):
            return Ready(tensor.numpy())
        tensor.copy_to_host_async()
        return Arriving(tensor)


class Arriving:
    """An array on its way to the host."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def done(self) -> bool:
        return bool(self.array.is_ready())

    def result(self) -> Any:
        return np.asarray(self.array)
