"""A plugin's feature reaches the rows that ask for it and no others, and where it is off nothing of it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.platforms.conftest import Alone, Start
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.fake_feature import BIT, COLUMN, EVEN_PLUGIN, FIELD

QUESTIONS = prompts(9, seed=13)
EVEN = {"features": ["even=9"], "plugins": [EVEN_PLUGIN]}


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_exactly_the_rows_that_ask_are_changed(start: Start, alone: Alone, params: dict) -> None:
    run = start(**EVEN, max_num_seqs=5, max_model_len=96, kv_cache_memory_bytes=200 * 384)
    asking = {2, 3, 6}
    for i, question in enumerate(QUESTIONS):
        columns = {COLUMN: 1000.0} if i in asking else {}
        run.add(question, 30, seed=i, ignore_eos=True, columns=columns, **params)
    run.finish()
    assert run.engine.stats.counters.preemptions > 0  # a row that comes back brings its columns again
    for i, question in enumerate(QUESTIONS):
        unchanged = alone(question, 30, seed=i, ignore_eos=True, **params)
        assert (run.answers[i] == unchanged) == (i not in asking)
        if i in asking:
            assert {token % 2 for token in run.answers[i]} == {0}


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_exactly_the_rows_that_ask_are_masked(start: Start, alone: Alone, params: dict) -> None:
    run = start(**EVEN, max_num_seqs=5, max_model_len=96, kv_cache_memory_bytes=200 * 384)
    asking = {2: 29, 3: 30, 6: 28}
    for i, question in enumerate(QUESTIONS):
        columns = {FIELD: asking[i]} if i in asking else {}
        run.add(question, 30, seed=i, ignore_eos=True, columns=columns, **params)
    run.finish()
    assert run.engine.stats.counters.preemptions > 0
    for i, question in enumerate(QUESTIONS):
        unchanged = alone(question, 30, seed=i, ignore_eos=True, **params)
        assert (run.answers[i] == unchanged) == (i not in asking)
        if i in asking:
            assert {token % 2 for token in run.answers[i]} == {0}
            assert len(run.answers[i]) == asking[i]
            assert run.finished[i].complete


def test_what_it_does_is_the_same_on_every_platform(start: Start, llama: Path) -> None:
    def ask(run: EngineRun) -> dict[int, list[int]]:
        for i, question in enumerate(QUESTIONS):
            run.add(question, 10, seed=i, columns={COLUMN: 0.5 * i, **({FIELD: 8} if i % 3 else {})}, **SAMPLED)
        run.finish()
        return run.answers

    with EngineRun(llama, "reference", **EVEN) as reference:
        assert ask(start(**EVEN)) == ask(reference)


@pytest.mark.parametrize("platform", ["strict", "strict-separate"])
def test_its_bit_is_in_the_keys_that_are_captured_and_replayed(llama: Path, platform: str) -> None:
    with EngineRun(llama, platform, **EVEN, depth=2) as run:
        runner = run.executor.runner
        warm = runner.graphs.replays
        run.ask(QUESTIONS)
        assert {key.bits for key in runner.executables} == {frozenset((BIT,))}
        assert len(runner.executables) == len(runner.shapes.keys())
        launches = runner.features[0].calls.count("before")
        assert runner.graphs.replays - warm == launches >= len(run.steps)
        assert runner.features[0].calls.count("logits") == runner.features[0].calls.count("after")


def test_where_it_is_off_nothing_of_it_is_there(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    runner, seen = run.executor.runner, []
    build = runner.builder._launch
    monkeypatch.setattr(runner.builder, "_launch", lambda *args: seen.append(build(*args)) or seen[-1])
    monkeypatch.setattr(runner.model, "logits", lambda rows: pytest.fail("sampling is one composite without features"))
    run.ask(QUESTIONS[:3])
    assert runner.features == []
    assert runner.batch.columns == {}
    assert seen
    assert all(launch.columns == {} and launch.key.bits == frozenset() for launch in seen)
