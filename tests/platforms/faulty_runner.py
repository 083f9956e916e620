"""Platforms with a runner of their own, as generated, and one mistake in each."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from tessera.platform import (
    LoadedModel,
    MemoryBudget,
    ModelRunner,
    RefusedError,
    RunnerServices,
    SchedulerOutput,
    TokenMasks,
)
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


class LateMasks(NumpyPlatform):
    """A step is sampled with the masks of the step before."""

    class Runner(NumpyRunner):
        before: TokenMasks | None = None

        def sample(self, pending: Any, masks: TokenMasks | None = None) -> Any:
            now, self.before = self.before or masks, masks
            return super().sample(pending, now)

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class OthersMasks(NumpyPlatform):
    """Each row is sampled with the mask of the row before."""

    class Runner(NumpyRunner):
        def sample(self, pending: Any, masks: TokenMasks | None = None) -> Any:
            rolled = None if masks is None else TokenMasks(masks.rows, np.roll(masks.bits, 1, axis=0))
            return super().sample(pending, rolled)

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class DraftsUnread(NumpyPlatform):
    """The tokens after a draft are computed as if it were another one."""

    class Runner(NumpyRunner):
        def execute(self, step: SchedulerOutput) -> Any:
            _, logits = super().execute(msgspec.structs.replace(step, drafts=np.zeros_like(step.drafts)))
            return step, logits

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class ScalesOfTheNextRow(NumpyPlatform):
    """The rows of a quantized weight use the scales of their neighbours."""

    class Runner(NumpyRunner):
        def load(self, budget: MemoryBudget) -> LoadedModel:
            loaded = super().load(budget)
            for layer in self.model.linear.values():
                layer.scale = None if layer.scale is None else np.roll(layer.scale, 1)
            return loaded

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class TakesNoMasks(NumpyPlatform):
    class Runner(NumpyRunner):
        def load(self, budget: MemoryBudget) -> LoadedModel:
            loaded = super().load(budget)
            return replace(loaded, unsupported=(*loaded.unsupported, "structured_outputs"))

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)


class RefusesAll(NumpyPlatform):
    class Runner(NumpyRunner):
        def load(self, budget: MemoryBudget) -> LoadedModel:
            raise RefusedError("it runs nothing at all.")

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)
