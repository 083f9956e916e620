"""A model that computes nothing, in core's own runner, so that the time of a step is the host's."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tessera.layers.build import Build
from tessera.loader.random_weights import Dummy
from tessera.platform import (
    BoundOps,
    CachePlan,
    Capabilities,
    LinearSpec,
    LogitsSampleSpec,
    MemoryBudget,
    ModelFacts,
    OpSet,
    Sampled,
    SamplingRows,
    replace,
)
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden
from tessera.runner.runner import CoreRunner
from tessera.runner.services import Services
from tessera.testing.reference import ReferencePlatform

VOCAB = 32_000


class FakePlatform(ReferencePlatform):
    """Samples the same tokens in every step."""

    name = "fake"
    capabilities = Capabilities(dtypes=("float32",), async_dispatch=False)

    def __init__(self, rows: int) -> None:
        chance = np.random.default_rng(1)
        self.drawn = torch.from_numpy(chance.integers(0, VOCAB, rows, dtype=np.int32))

    def ops(self, reference: OpSet) -> OpSet:
        def draw(spec: Any, hidden: Tensor, weight: Any, sampling: SamplingRows, out: Any = None) -> Sampled:
            return Sampled(self.drawn[: len(hidden)])

        return replace(reference, logits_sample=draw)


class FakeModel:
    """Hidden states of size one, which are never written."""

    def __init__(self, tokens: int) -> None:
        self.facts = ModelFacts("Fake", VOCAB, 1, 1, 1 << 20, "float32", caches=())
        self.head = SimpleNamespace(
            weight={}, sampling_spec=lambda sample: LogitsSampleSpec(LinearSpec(VOCAB, 1, "float32"), sample)
        )
        self._states = torch.zeros(tokens, 1)

    def embed(self, tokens: Tensor) -> Tensor:
        return self._states[: len(tokens)]

    def forward(self, x: Tensor, launch: Launch, caches: Any) -> Hidden:
        return Hidden(x)

    def finish(self, hidden: Hidden) -> Tensor:
        return hidden.last

    def logits(self, rows: Tensor) -> Tensor:
        raise NotImplementedError("nothing asks for them")


class FakeServices(Services):
    """Builds the fake instead of a checkpoint's model."""

    def build_model(self, ops: OpSet, backends: Sequence[Any], *others: Any) -> Any:
        self.build = Build(BoundOps(ops, self.device, self.groups), self.device, self.dtype, backends)
        return FakeModel(self.config.scheduler.max_num_batched_tokens)


def make_runner(plan: CachePlan, scheduler: SchedulerConfig) -> CoreRunner:
    """Core's runner, ready to run steps."""
    platform = FakePlatform(plan.num_rows)
    config = EngineConfig(
        ModelConfig("", "fake", {}, VOCAB, plan.max_model_len),
        "benchmarks.host.fake_model:FakePlatform",
        cache=CacheConfig(memory_bytes=1),
        scheduler=scheduler,
    )
    services = FakeServices(config, [platform.open(0)], {}, platform, source=Dummy(0))
    runner = CoreRunner(services, platform, lambda progress: None)
    runner.load(MemoryBudget(total=1 << 40, kv=1))
    runner.allocate(plan)
    runner.warm_up(lambda progress: None)
    return runner
