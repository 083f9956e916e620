"""The engine in a user's own process: many prompts, Ctrl-C, a step that fails. Over the fake executor."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tessera.engine.engine import Engine
from tessera.engine.offline import OfflineEngine
from tessera.errors import EngineDeadError, EngineStepError
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tests.engine import fakes


@pytest.fixture
def offline(request):
    def make(behaviour="", **scheduler):
        engine = OfflineEngine(Engine(fakes.config(behaviour, **scheduler), executor=fakes.EXECUTOR), None)
        request.addfinalizer(engine.close)
        return engine

    return make


def jobs(engine, prompts, **given):
    params = SamplingParams(**{"max_tokens": 20, "output_kind": RequestOutputKind.FINAL_ONLY, **given})
    return [engine.job(engine.front.prepare(prompt, params), params) for prompt in prompts]


def answers(outputs):
    return [completion.token_ids for output in outputs for completion in output.outputs]


def ignore(output):
    """No bar."""


@pytest.mark.parametrize("scheduler", [{}, {"max_num_seqs": 1, "max_waiting": 1}, {"max_num_seqs": 3}])
def test_answers_are_in_the_order_of_the_prompts(offline, scheduler):
    engine = offline(**scheduler)
    prompts = [[number % 60 + 1] * (number % 7 + 1) for number in range(100)]
    done = []
    outputs = engine.run(jobs(engine, prompts), done.append)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert answers(outputs) == [fakes.answer(prompt, 20) for prompt in prompts]
    assert sorted(map(id, done)) == sorted(map(id, outputs))


def test_only_as_many_wait_as_may_start_soon(offline):
    engine = offline(max_num_seqs=2)
    most = 0

    def watch(output):
        nonlocal most
        most = max(most, engine.front.num_unfinished)

    engine.run(jobs(engine, [[1]] * 50), watch)
    assert 1 <= most <= 4


def test_more_answers_than_may_wait_still_run(offline):
    engine = offline(max_num_seqs=2, max_waiting=8)
    outputs = engine.run(jobs(engine, [[1], [2]], n=8, seed=1), ignore)
    assert [len(output.outputs) for output in outputs] == [8, 8]
    assert answers(outputs) == [fakes.answer([1], 20)] * 8 + [fakes.answer([2], 20)] * 8


def test_ctrl_c_ends_what_runs_and_leaves_the_engine_usable(offline):
    engine = offline("slow")
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.run(jobs(engine, [[1], [2], [3]], max_tokens=4000), ignore)
    assert time.monotonic() - begin < 20
    timer.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert engine.front.num_unfinished == 0
    assert answers(engine.run(jobs(engine, [[5]]), ignore)) == [fakes.answer([5], 20)]


def test_ctrl_c_while_the_last_step_runs_is_not_lost(offline):
    engine = offline()

    def interrupt(output):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        engine.run(jobs(engine, [[1]]), interrupt)
    assert answers(engine.run(jobs(engine, [[5]]), ignore)) == [fakes.answer([5], 20)]


def test_a_second_ctrl_c_does_not_wait_for_the_step(offline):
    engine = offline()

    def interrupt_twice(output):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        engine.run(jobs(engine, [[1]], max_tokens=1) + jobs(engine, [[2]]), interrupt_twice)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_stays(offline):
    engine = offline("slow")
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        assert answers(engine.run(jobs(engine, [[1]]), ignore)) == [fakes.answer([1], 20)]
        timer.join()
        assert came == [1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_step_that_fails_says_so_and_ends_it(offline):
    engine = offline("fail-at-3")
    with pytest.raises(EngineStepError, match="ZeroDivisionError") as caught:
        engine.run(jobs(engine, [[1]]), ignore)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(EngineDeadError, match="failed in an earlier step"):
        engine.run(jobs(engine, [[1]]), ignore)
    engine.close()


def test_threads_take_turns(offline):
    engine = offline()
    results = {}

    def call(number):
        results[number] = answers(engine.run(jobs(engine, [[number]] * 5), ignore))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [fakes.answer([number], 20)] * 5 for number in range(1, 9)}


def test_closing_twice_is_closing_once(offline):
    engine = offline()
    engine.close()
    engine.close()
    with pytest.raises(EngineDeadError, match="closed"):
        engine.run([], ignore)
