"""Programs: as many as there are shapes, all before the first step, and none in a later start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from tessera_tpu import inputs, requests
from tessera_tpu import runner as runner_module
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts

_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compiled() -> Iterator[list[str]]:
    """What JAX compiles or reads from its cache within it, whoever asks: an array's function called by itself too."""
    events: list[str] = []

    def listen(event: str, seconds: float, **said: Any) -> None:
        if event == _COMPILED:
            events.append(str(said.get("fun_name", event)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_200_mixed_requests_take_at_most_twelve_programs(start: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    sizes = {"max_num_seqs": 32, "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 1 << 23}
    run, rng = start(**sizes), random.Random(5)
    programs = run.executor.runner.programs
    warm = len(programs.compiled_keys)
    with compiled() as events:
        for seed, question in enumerate(prompts(200, longest=100, seed=6)):
            params = rng.choice([{}, SAMPLED, FILTERED, {"logprobs": 2}, {"presence_penalty": 1.0}])
            run.add(question, rng.randrange(1, 20), seed=seed, ignore_eos=True, **params)
        run.finish()
    assert events == []
    assert len(programs.compiled_keys) == warm <= 12
    assert programs.cached_keys == []


def test_a_step_of_a_known_shape_makes_nothing_anew_that_could_be_kept(start: Any, monkeypatch: Any) -> None:
    run, questions = start(), prompts(3)
    run.ask(questions, 6, ignore_eos=True)
    runner, asked = run.executor.runner, []
    monkeypatch.setattr(inputs, "launch_fields", asked.append)
    monkeypatch.setattr(requests, "sample_fields", asked.append)
    monkeypatch.setattr(runner_module, "Program", asked.append)
    assert runner.model.values is runner.model.values
    assert runner.mesh.whole is runner.mesh.whole
    run.ask(questions, 6, ignore_eos=True)
    assert asked == []


def test_a_second_start_compiles_nothing(start: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    questions, answers = prompts(3), []
    for _ in range(2):
        run = start()
        answers.append(run.ask(questions, 6, ignore_eos=True))
        programs = run.executor.runner.programs
    assert (programs.compiled_keys, len(programs.cached_keys) > 0) == ([], True)
    assert answers[0] == answers[1]


def test_a_start_of_another_model_reads_nothing_of_the_first(start: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    start("llama", enforce_eager=True).ask(prompts(1), 2)
    run = start("qwen3", enforce_eager=True)
    run.ask(prompts(1), 2)
    read = {key[0] for key in run.executor.runner.programs.cached_keys if isinstance(key, tuple)}
    assert "forward" not in read


def test_enforce_eager_compiles_nothing_ahead(start: Any, expected: Any) -> None:
    run = start(enforce_eager=True)
    programs = run.executor.runner.programs
    assert [*programs.compiled_keys, *programs.cached_keys] == []
    questions = prompts(2)
    assert run.ask(questions, 4, ignore_eos=True) == expected("llama", questions, 4)
    assert {key[0] for key in [*programs.compiled_keys, *programs.cached_keys] if isinstance(key, tuple)} == {
        "forward",
        "sample",
    }


def test_the_processs_settings_of_jax_are_as_before(start: Any) -> None:
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = [getattr(jax.config, name) for name in names]
    start(enforce_eager=True).ask(prompts(1), 2)
    assert [getattr(jax.config, name) for name in names] == before


@pytest.mark.parametrize("rows", [3, 40])
def test_launches_have_few_shapes(start: Any, rows: int) -> None:
    run = start(max_num_seqs=rows, enforce_eager=True)
    keys = run.executor.runner.shapes.keys()
    assert {key.rows for key in keys} == ({rows} if rows <= 8 else {8, 32, rows})
