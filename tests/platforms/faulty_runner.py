"""Platforms with a runner of their own, as generated, and one mistake in each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tessera.platform import LoadedModel, MemoryBudget, ModelRunner, RefusedError, RunnerServices
from tests.platforms.generated import numpy_package

numpy_package()
NumpyPlatform: Any = import_module("tessera_numpy.platform").NumpyPlatform
NumpyRunner: Any = import_module("tessera_numpy.runner").NumpyRunner


class WrongBase(NumpyPlatform):
    """The rotary embeddings turn too fast."""

    class Runner(NumpyRunner):
        def load(self, budget: MemoryBudget) -> LoadedModel:
            loaded = super().load(budget)
            self.model.theta /= 20
            return loaded

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class RefusesAll(NumpyPlatform):
    class Runner(NumpyRunner):
        def load(self, budget: MemoryBudget) -> LoadedModel:
            raise RefusedError("it runs nothing at all.")

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)
