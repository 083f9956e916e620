"""An executor without a model: the next token is a function of the tokens before it, so every answer is known
beforehand."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.arrays import int32
from tessera.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tessera.errors import MemoryBudgetError, ModelError, RefusedError
from tessera.executor.base import Executor, Report
from tessera.platform import (
    CacheNeeds,
    CachePlan,
    Capabilities,
    Default,
    Device,
    FullAttentionSpec,
    HostDevice,
    KVLayout,
    LoadedModel,
    MemoryFigures,
    ModelFacts,
    Plane,
    Platform,
    Progress,
    Ready,
)
from tessera.platform.model import LayerCache
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput, TokenMasks

VOCAB = 64
EOS = 0
EXECUTOR = "tests.engine.fakes:FakeExecutor"


def next_token(tokens: Sequence[int]) -> int:
    """From 1 to VOCAB - 1: never EOS, so that tests say where answers end."""
    return (int(tokens[-1]) * 5 + len(tokens)) % (VOCAB - 1) + 1


def answer(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def config(behaviour: str = "", **scheduler: Any) -> EngineConfig:
    """behaviour: words that FakeExecutor follows; served_name carries them to its process."""
    return EngineConfig(
        model=ModelConfig(
            path="", served_name=behaviour, checkpoint={}, vocab_size=VOCAB, max_model_len=4096, eos_token_ids=(EOS,)
        ),
        cache=CacheConfig(memory_bytes=1 << 24),
        scheduler=SchedulerConfig(**{"max_num_seqs": 16, "max_num_batched_tokens": 8192, **scheduler}),
        platform="tests.engine.fakes:FakePlatform",
    )


class FakePlatform(Platform):
    name = "fake"
    capabilities = Capabilities(dtypes=("float32",), async_dispatch=False)

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour

    def open(self, index: int) -> Device:
        return HostDevice(None, MemoryFigures(total=1 << 30, free=1 << 30, host=True))

    def defaults(self, model: ModelFacts) -> dict[str, Default]:
        return {"scheduler.max_num_seqs": Default(3, "three is enough")} if "defaults" in self.behaviour else {}


class FakeExecutor(Executor):
    """Words of config.model.served_name: "slow" takes 20 ms a step, "brisk" 2; "fail-load", "no-memory", "crash-load",
    "hang-load", "kill-load", "problems" say how load() ends; "fail-at-7" raises in step 7, "stop-at-7" stops the
    process there, "hang-at-7" sleeps, "hold-at-7" does so with the interpreter's lock, "spin-at-7" computes; "poison=7"
    raises in each step with a prompt that begins with token 7; "defaults" are the platform's. "once=FILE": only the
    first engine does so; "later=FILE": only those after it."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.words = obeyed(config.model.served_name.split())
        self.platform = FakePlatform(config.model.served_name)
        self.rows: dict[int, Any] = {}

    def load(self, report: Report) -> list[LoadedModel]:
        report(Progress("load", 1, 2))
        if "fail-load" in self.words:
            raise ModelError("There is no such model; name another.")
        if "no-memory" in self.words:
            raise MemoryBudgetError("The weights do not fit.")
        if "problems" in self.words:
            raise RefusedError("The fake cannot dance; leave out dancing.\nNor can it sing.")
        if "crash-load" in self.words:
            raise ZeroDivisionError("a bug in load")
        if "kill-load" in self.words:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang-load" in self.words:
            time.sleep(600)
        spec = FullAttentionSpec(num_kv_heads=1, head_dim=8, dtype="float32")
        facts = ModelFacts(
            architecture="Fake", vocab_size=VOCAB, hidden_size=8, num_layers=1, max_positions=4096, dtype="float32",
            caches=(LayerCache(0, spec),),
        )  # fmt: skip
        needs = CacheNeeds(0, spec, (16,), True, "int32", 1, _layout)
        return [LoadedModel(facts, (needs,), weight_bytes=1000, cache_bytes=1 << 24)]

    def allocate(self, plans: Sequence[CachePlan]) -> None:
        (self.plan,) = plans

    def warm_up(self, report: Report) -> None:
        report(Progress("warm_up", 1, 1))

    def execute(self, step: SchedulerOutput) -> SchedulerOutput:
        self._misbehave(step)
        for row in step.freed.tolist():
            self.rows.pop(row, None)
        for opened in step.opened:
            self.rows[opened.row] = (opened.tokens.tolist(), opened.params)
        for held, _ in self.rows.values():
            if f"poison={held[0]}" in self.words:
                raise ZeroDivisionError("a bug in a step")
        return step

    def _misbehave(self, step: SchedulerOutput) -> None:
        if "slow" in self.words:
            time.sleep(0.02)
        if "brisk" in self.words:
            time.sleep(0.002)
        for word in self.words:
            if word == f"fail-at-{step.step}":
                raise ZeroDivisionError("a bug in a step")
            if word == f"stop-at-{step.step}":
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(5.0)  # who lets it go on finds it here
            if word == f"hang-at-{step.step}":
                time.sleep(600)
            if word == f"hold-at-{step.step}":
                ctypes.PyDLL(None).sleep(600)
            if word == f"spin-at-{step.step}":
                spin(3.0)

    def sample(self, pending: SchedulerOutput, masks: TokenMasks | None = None) -> Ready:
        tokens, logprobs = [], []
        for row in pending.samples.tolist():
            held, params = self.rows[row]
            held.append(next_token(held))
            tokens.append(held[-1])
            if params.logprobs is not None:
                others = [held[-1], *range(1, params.logprobs + 1)]
                values = -np.arange(1, len(others) + 1, dtype=np.float32)
                logprobs.append(RowLogprobs(row, int32([others]), values[None], int32([1])))
        counts = int32([1] * len(tokens))
        return Ready(StepOutput(pending.step, pending.samples, counts, int32(tokens), logprobs))

    def close(self) -> None:
        if "fail-close" in self.words:
            raise RuntimeError("cannot be closed")
        if "leave-a-mark" in self.words:
            Path(self.words[-1]).touch()


def obeyed(words: list[str]) -> list[str]:
    """The words that this engine follows: a file says that it is not the first."""
    for word in words:
        when, _, path = word.partition("=")
        if when in ("once", "later"):
            first = not Path(path).exists()
            Path(path).touch()
            return words if first == (when == "once") else []
    return words


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _layout(block_size: int) -> KVLayout:
    axes = (("token", block_size), ("head", 1), ("dim", 8))
    return KVLayout((Plane("k", "float32", axes), Plane("v", "float32", axes)))
