"""Platforms with a runner of their own, as generated, that take more, or less, than the generated one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from tessera.platform import (
    Array,
    LoadedModel,
    LoraWeights,
    MemoryBudget,
    ModelRunner,
    ReadWeight,
    RunnerServices,
    SchedulerOutput,
    Scheme,
)
from tests.platforms.generated import numpy_package

PATH = "tests.platforms.own_runners"
numpy_package()
NumpyPlatform: Any = import_module("tessera_numpy.platform").NumpyPlatform
NumpyRunner: Any = import_module("tessera_numpy.runner").NumpyRunner


class TakesNothing(NumpyPlatform):
    class Runner(NumpyRunner):
        takes = ModelRunner.takes

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class TakesMistyped(NumpyPlatform):
    class Runner(NumpyRunner):
        takes = frozenset({"draft", "quantization"})

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class TakesInt4(NumpyPlatform):
    """Reads int4 and computes with zeros instead."""

    class Services:
        def __init__(self, services: RunnerServices) -> None:
            self._services = services

        def __getattr__(self, name: str) -> Any:
            return getattr(self._services, name)

        def stored_weights(self, linear_layers: Mapping[str, tuple[int, int]]) -> Iterator[ReadWeight]:
            for read in self._services.stored_weights(linear_layers):
                if read.scheme is None:
                    yield read
                else:
                    k, n = linear_layers[read.name.removesuffix(".weight")]
                    yield ReadWeight(read.name, {"weight": torch.zeros(n, k)})

    def scheme(self, scheme: Scheme) -> Scheme:
        return scheme

    def runner(self, services: RunnerServices) -> ModelRunner:
        runner: ModelRunner = NumpyRunner(self.Services(services))
        return runner


class TakesAdapters(NumpyPlatform):
    """Reads each adapter once, and adds the one of the row that is being computed."""

    class Runner(NumpyRunner):
        takes = NumpyRunner.takes | {"lora"}

        def load(self, budget: MemoryBudget) -> LoadedModel:
            loaded = super().load(budget)
            self.adapters: dict[str, LoraWeights | None] = {"": None}
            self.of_row: dict[int, LoraWeights | None] = {}
            self.now: LoraWeights | None = None
            for name, layer in self.model.linear.items():
                self.model.linear[name] = _Adapted(self, name, layer)
            self.model.logits = self._logits(self.model.logits)
            return replace(loaded, linear_layers=self.model.linear_layers)

        def execute(self, step: SchedulerOutput) -> Any:
            for opened in step.opened:
                folder = opened.feature_args.get("lora", "")
                if folder not in self.adapters:
                    self.adapters[folder] = self.services.lora_weights(folder)
                self.of_row[opened.row] = self.adapters[folder]
            self.rows: Iterator[int] = iter(step.rows.tolist())
            return super().execute(step)

        def _logits(self, plain: Any) -> Any:
            def logits(*given: Any) -> Array:
                self.now = self.of_row[next(self.rows)]
                found: Array = plain(*given)
                return found

            return logits

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class _Adapted:
    """A linear layer with the adapter of the runner's row."""

    def __init__(self, runner: Any, name: str, layer: Any) -> None:
        self.runner, self.name, self.layer = runner, name, layer

    def __call__(self, x: Array) -> Array:
        y, adapter = self.layer(x), self.runner.now
        if adapter is not None and self.name in adapter.layers:
            a, b = (half.float().numpy() for half in adapter.layers[self.name])
            y = y + adapter.scale * (x @ a.T) @ b.T
        return y
