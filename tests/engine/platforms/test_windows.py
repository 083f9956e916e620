"""Blocks behind a window are given back while a request runs: nothing that was given back is read again, and a long
request holds few blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import MAX_POSITIONS, save_family

WINDOW = 19
QUESTIONS = prompts(5, longest=120, seed=31)
LONG = 60


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("mistral", tmp_path_factory.mktemp("windowed"))


@pytest.fixture(scope="session")
def mixed_windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full attention in one layer, a window in the other."""
    return save_family("qwen2", tmp_path_factory.mktemp("mixed_windows"))


class Poisoned(EngineRun):
    """Whatever is free is NaN before each step, so who reads it answers otherwise. most_held: by group."""

    def __init__(self, *args: Any, **flags: Any) -> None:
        super().__init__(*args, enable_prefix_caching=False, **flags)
        self.most_held = [0] * len(self.cache.pools)
        execute = self.executor.execute

        def poisoned(step: Any) -> Any:
            memory = self.executor.worker.runner.memory
            for group, pool in enumerate(self.cache.pools):
                for buffer in memory.buffers[group]:
                    buffer[torch.tensor([0, *pool._free])] = 255
                counts = self.cache.tables.counts[group] - self.cache.tables.starts[group]
                self.most_held[group] = max(self.most_held[group], int(counts.max()))
            return execute(step)

        self.executor.execute = poisoned  # type: ignore[method-assign]  # between the engine and its executor

    @property
    def cache(self) -> Any:
        return self.engine._scheduler._cache


@pytest.mark.parametrize(
    ("model", "platform", "depth"),
    [
        ("windowed", "cpu", 1),
        ("mixed_windows", "cpu", 1),
        ("mixed_windows", "strict", 2),  # which has the windows of the other beside a group without
        pytest.param("windowed", "strict", 2, marks=pytest.mark.nightly),
    ],
)
def test_nothing_that_was_given_back_is_read(
    model: str, platform: str, depth: int, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(model)
    asked = {"max_tokens": LONG, "ignore_eos": True, **SAMPLED}
    with EngineRun(folder, "reference", enable_prefix_caching=False, max_num_seqs=1) as alone:
        expected = alone.ask(QUESTIONS, **asked)
    flags = {"depth": depth, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    with Poisoned(folder, platform, **flags) as run:
        assert run.ask(QUESTIONS, **asked) == expected
        groups = run.cache._groups
    for group, most in zip(groups, run.most_held, strict=True):
        longest = max(map(len, QUESTIONS)) + LONG
        assert most == group.blocks_of(longest) if group.window is None else most < group.blocks_of(longest)


@pytest.mark.parametrize("platform", ["cpu", "strict"])
def test_siblings_prefixes_and_preemption_hold_with_windows(windowed: Path, platform: str) -> None:
    """A cache of a few windows, in which requests take each other's blocks and find each other's prefixes."""
    asked = {"ignore_eos": True, **SAMPLED}
    with EngineRun(windowed, "reference", enable_prefix_caching=False, max_num_seqs=1) as alone:
        first = alone.ask(QUESTIONS, max_tokens=40, **asked)
        shared = alone.ask([QUESTIONS[0] + QUESTIONS[1][:9]] * 3, max_tokens=40, **asked)
    small = {"kv_cache_memory_bytes": 384 * 300, "max_num_batched_tokens": 32, "max_model_len": MAX_POSITIONS}
    with EngineRun(windowed, platform, depth=2, **small) as run:
        (group,) = run.engine._scheduler._cache._groups
        assert run.ask(QUESTIONS, max_tokens=40, **asked) == first
        prompt = QUESTIONS[0] + QUESTIONS[1][:9]
        leader = run.add(prompt, 40, seed=0, **asked)
        keys = [leader] + [run.add(prompt, 40, seed=seed, leader=leader, **asked) for seed in (1, 2)]
        run.finish()
        assert [run.answers[key] for key in keys] == shared
        again = run.add(prompt, 40, seed=0, **asked)
        run.finish()
        assert run.answers[again] == shared[0]
        assert run.cached[again] == len(prompt) // group.block_size * group.block_size
