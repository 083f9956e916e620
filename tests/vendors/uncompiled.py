"""Platforms without their compilers, which take a second for each shape of each engine. With these the conformance kit
runs; test_engine.py compiles."""

from __future__ import annotations

from typing import Any

from tessera.platform import Device, Platform, Problem
from tessera_neuron.platform import NeuronPlatform
from tessera_spyre.platform import SpyrePlatform
from tessera_xla.platform import TorchTpuPlatform


class Uncompiled(Platform):
    def graph_runner(self, device: Device) -> None:
        return None


class Neuron(Uncompiled, NeuronPlatform):
    pass


class Spyre(Uncompiled, SpyrePlatform):
    """With models whose heads the card cannot hold, as the kit's are; attention of these is the reference's."""

    def check(self, config: Any, model: Any) -> tuple[Problem, ...]:
        return ()


class TorchTpu(Uncompiled, TorchTpuPlatform):
    pass
