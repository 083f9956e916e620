"""The platform without its compiler, which takes a second for each shape of each engine."""

from __future__ import annotations

from tessera.platform import Device
from tessera_xla.platform import TorchTpuPlatform


class Eager(TorchTpuPlatform):
    def graph_runner(self, device: Device) -> None:
        return None
