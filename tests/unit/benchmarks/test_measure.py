from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from subprocess import PIPE

import pytest
from benchmarks.measure import Task, measure, peak_bytes

TASK = Task("small", "small", "bfloat16", 100, 51, [1, 4], 1000, 2, 7)


class Clockwork:
    """Takes a second for each prompt and 0.1 s for each token after the first, by its own clock."""

    version = "1"

    def __init__(self, short_by: int = 0, step: float = 0.1) -> None:
        self.now = 0.0
        self.prompts: list[list[int]] = []
        self._short_by = short_by
        self._step = step

    def generate(self, prompts: list[list[int]], tokens: int) -> list[int]:
        self.prompts += prompts
        self.now += len(prompts) + self._step * (tokens - 1)
        return [tokens - self._short_by] * len(prompts)

    def clock(self) -> float:
        return self.now


def test_decode_is_what_the_tokens_after_the_first_add():
    engine = Clockwork()
    one, four = measure(engine, TASK, engine.clock)
    assert (one["batch"], four["batch"]) == (1, 4)
    assert one["prefill"] == four["prefill"] == pytest.approx(100)
    assert one["decode"] == pytest.approx(10)
    assert four["decode"] == pytest.approx(40)
    assert (four["first_s"], four["whole_s"]) == pytest.approx((4, 9))


def test_no_prompt_comes_twice_and_all_engines_get_the_same():
    engines = [Clockwork(), Clockwork()]
    for engine in engines:
        list(measure(engine, TASK, engine.clock))
    assert engines[0].prompts == engines[1].prompts
    assert all(len(prompt) == TASK.input and max(prompt) < TASK.vocab for prompt in engines[0].prompts)
    assert all(before != after for before, after in pairwise(sorted(engines[0].prompts)))


def test_short_answers_are_no_result():
    engine = Clockwork(short_by=1)
    with pytest.raises(SystemExit, match="Asked for 1 answers of 2 tokens"):
        list(measure(engine, TASK, engine.clock))


def test_time_that_does_not_grow_with_the_answer_is_no_result():
    engine = Clockwork(step=0.0)
    with pytest.raises(SystemExit, match="took no longer than one at batch 1"):
        list(measure(engine, TASK, engine.clock))


def test_memory_of_processes_that_were_started_counts():
    before = peak_bytes()
    program = "held = b'x' * 2**26; print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        assert peak_bytes() >= before + 2**26
        child.communicate(b"\n")
