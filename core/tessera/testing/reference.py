"""The reference platform: a bare torch device, nothing overridden."""

from __future__ import annotations

import os

import torch

from tessera.platform.device import Device, HostDevice, MemoryFigures, TorchDevice
from tessera.platform.platform import Capabilities, Platform


class ReferencePlatform(Platform):
    """Runs any torch device on core's reference ops. kind: torch's name for the device; set it in a subclass."""

    name = "reference"
    kind = "cpu"
    capabilities = Capabilities(dtypes=("bfloat16", "float32", "float16"), async_dispatch=False)

    def open(self, index: int) -> Device:
        return host_device() if self.kind == "cpu" else TorchDevice(torch, self.kind, index)


def host_device() -> HostDevice:
    """The host, with half of its memory reported as free."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HostDevice(torch, MemoryFigures(total=total, free=total // 2, host=True))
