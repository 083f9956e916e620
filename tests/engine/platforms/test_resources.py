"""What a platform has only so much of is never exceeded, is always given back, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.platforms.conftest import Alone
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.limited import ROWS, SLOTS, TOKENS

QUESTIONS = prompts(9, longest=50, seed=14)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ["LimitedCpuPlatform", "LimitedStrictPlatform", "LimitedSeparatePlatform"])
def test_limits_hold_and_everything_finishes(llama: Path, alone: Alone, name: str, depth: int) -> None:
    small = {"max_model_len": 96, "kv_cache_memory_bytes": 170 * 384}
    with EngineRun(llama, f"tests.platforms.limited:{name}", depth=depth, **small) as run:
        keys = [run.add(question, 30, seed=i, ignore_eos=True, **SAMPLED) for i, question in enumerate(QUESTIONS)]
        keys += [run.add(QUESTIONS[0], 30, seed=20 + i, leader=keys[0], ignore_eos=True, **SAMPLED) for i in range(2)]
        for _ in range(7):
            run.step()
        run.engine.abort([keys[1], keys[7]])
        run.finish()
        slots, tokens = run.executor.platform.slots, run.executor.platform.tokens
        assert run.engine.stats.counters.preemptions > 0
        assert (slots.most, slots.holders) == (SLOTS, set())
        assert tokens.most == max(step.total_num_scheduled_tokens for step in run.steps) <= TOKENS
    for key in set(keys) - {keys[1], keys[7]}:
        question, seed = (QUESTIONS[key], key) if key < len(QUESTIONS) else (QUESTIONS[0], 20 + key - len(QUESTIONS))
        assert run.answers[key] == alone(question, 30, seed=seed, ignore_eos=True, **SAMPLED)


def test_a_platforms_defaults_reach_its_workers_buffers(llama: Path) -> None:
    """More rows and tokens in a step than core's own defaults, in arrays that the worker made."""
    build = {"max_num_seqs": None, "kv_cache_memory_bytes": 1 << 24}
    with EngineRun(llama, "tests.platforms.limited:RoomyCpuPlatform", **build) as run:
        assert run.engine.config.scheduler.max_num_seqs == ROWS
        for number in range(ROWS):
            run.add([1 + number % 50] * 10, 3, ignore_eos=True)
        run.finish()
        assert max(len(step.rows) for step in run.steps) == ROWS
        assert max(step.total_num_scheduled_tokens for step in run.steps) == ROWS * 10


def test_a_request_that_a_resource_never_takes_ends_with_its_reason(llama: Path) -> None:
    with EngineRun(llama, "tests.platforms.limited:ShutCpuPlatform") as run:
        key = run.add(QUESTIONS[0], 4)
        outputs = run.engine.step()
        assert outputs is not None
        (finished,) = outputs.finished
        assert (finished.key, finished.reason) == (key, "error")
        assert finished.message == "This request cannot continue: door: it is shut."
        assert not run.engine.has_work
