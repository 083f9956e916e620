"""The platform without its compiler, which takes a second for each shape of each engine."""

from __future__ import annotations

from tessera.platform import Device
from tessera_neuron.platform import NeuronPlatform


class Eager(NeuronPlatform):
    def graph_runner(self, device: Device) -> None:
        return None
