"""Platforms that give one worker two devices: with a runner that divides the head between them, and at op depth."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.platform import (
    Array,
    Device,
    LoadedModel,
    MemoryBudget,
    MemoryFigures,
    ModelRunner,
    RunnerServices,
    WorkerSpec,
)
from tessera.testing import ReferencePlatform
from tests.platforms.generated import numpy_package

if TYPE_CHECKING:
    from tessera.config import ParallelConfig

PATH = "tests.platforms.several_devices"
numpy_package()
NumpyDevice: Any = import_module("tessera_numpy.platform").NumpyDevice
NumpyPlatform: Any = import_module("tessera_numpy.platform").NumpyPlatform
NumpyRunner: Any = import_module("tessera_numpy.runner").NumpyRunner


class _Both:
    def placement(self, parallel: ParallelConfig) -> Sequence[WorkerSpec]:
        return [WorkerSpec(rank=0, world_size=1, devices=(3, 1))]


class TwoAtOpDepth(_Both, ReferencePlatform):
    name = "two"


class Counting(NumpyDevice):
    """products: how many it computed. seed_given: what it was seeded with. The one with index 1 has less memory."""

    def __init__(self, index: int) -> None:
        self.index, self.products, self.seed_given = index, 0, -1

    def memory(self) -> MemoryFigures:
        return MemoryFigures(1 << 30, (1 << 29) + self.index, host=True)

    def seed(self, value: int) -> None:
        self.seed_given = value

    def product(self, x: Array, weight: Array) -> Array:
        self.products += 1
        return x @ weight.T


class _DividedHead:
    """weight [n, k]: as many rows on one device as on the other, or one more."""

    def __init__(self, devices: Sequence[Any], weight: Array) -> None:
        self.parts = list(zip(devices, np.array_split(weight, len(devices)), strict=True))

    def __call__(self, x: Array) -> Array:
        return np.concatenate([device.product(x, part) for device, part in self.parts], axis=-1)


class TwoDevices(_Both, NumpyPlatform):
    class Runner(NumpyRunner):
        def load(self, budget: MemoryBudget) -> LoadedModel:
            loaded = super().load(budget)
            self.granted = budget.total
            self.model.linear["lm_head"] = _DividedHead(self.services.devices, self.model.linear["lm_head"].weight)
            return loaded

    def open(self, index: int) -> Device:
        device: Device = Counting(index)
        return device

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)
