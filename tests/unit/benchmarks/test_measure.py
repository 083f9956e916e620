from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from subprocess import PIPE

import pytest
from benchmarks.measure import WARM_TOKENS, Stepped, rates, start
from benchmarks.process import peak_bytes
from benchmarks.task import CHECK_PROMPTS, CHECK_TOKENS, Prompts, Task

TASK = Task("decode", "small", "small", "bfloat16", 100, 51, [1, 4], 1000, 2, 7)


class Clockwork:
    """Takes a second for each prompt until its first token, and 0.1 s for each step after the last prompt's, by its own
    clock. mixes: whether prompts that have begun get a token while others are read, as servers do. silent: of how many
    steps nothing is heard."""

    version = "1"

    def __init__(self, short_by: int = 0, mixes: bool = False, silent: int = 0) -> None:
        self.now = 0.0
        self.prompts: list[list[int]] = []
        self._short_by = short_by
        self._mixes = mixes
        self._silent = silent

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        self.prompts += prompts
        left = [tokens] * len(prompts)
        begun = 0
        silent = self._silent
        while any(left):
            begins = begun < len(prompts)
            self.now += 1 if begins else 0.1
            rows = [row for row in range(begun) if left[row] and (self._mixes or not begins)]
            rows += [begun] if begins else []
            begun += begins
            for row in rows:
                left[row] -= 1
            if silent == 0:
                stepped([f"prompt {row}" for row in rows])
            silent = max(0, silent - 1)
        return [prompt[:1] * (tokens - self._short_by) for prompt in prompts]

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("mixes", [False, True])
def test_decode_is_what_comes_while_every_prompt_is_answered(mixes: bool):
    engine = Clockwork(mixes=mixes)
    one, four = rates(engine, TASK, engine.clock)
    assert (one["batch"], four["batch"]) == (1, 4)
    assert one["values"]["prefill"] == four["values"]["prefill"] == pytest.approx(100)
    assert one["values"]["decode"] == pytest.approx(10)
    assert four["values"]["decode"] == pytest.approx(40)
    assert (four["values"]["first_s"], four["values"]["whole_s"]) == pytest.approx((4, 9))


def test_a_batch_size_waits_for_its_turn():
    engine, turns = Clockwork(), []
    found = rates(engine, TASK, engine.clock, lambda: turns.append(len(engine.prompts)))
    assert turns == []
    next(found)
    asked = len(engine.prompts)
    assert turns == [0]
    assert asked > 0
    next(found)
    assert turns == [0, asked]


def test_prefill_alone_asks_for_one_token():
    engine = Clockwork()
    (one,) = rates(engine, replace(TASK, part="prefill", output=1, batches=[4]), engine.clock)
    assert set(one["values"]) == {"prefill", "first_s"}
    assert one["values"]["prefill"] == pytest.approx(100)


def test_a_start_is_until_the_first_token():
    engine = Clockwork()
    engine.now = 12.0
    one = start(engine, replace(TASK, part="start", began=10.0), engine.clock)
    assert one["values"] == {"ready_s": pytest.approx(3.0)}
    assert one["answers"] == [Prompts(TASK).checked()[0][:1] * CHECK_TOKENS]


def test_what_is_checked_is_answered_in_a_batch_of_the_size_that_is_timed():
    engine = Clockwork()
    found = list(rates(engine, replace(TASK, batches=[1, 32]), engine.clock))
    checked = [prompt[:1] * CHECK_TOKENS for prompt in Prompts(TASK).checked()]
    assert [result["answers"] for result in found] == [checked[:1], checked[:CHECK_PROMPTS]]
    lengths = [len(prompt) for prompt in engine.prompts]
    assert lengths == [25, 100, 100, *[25] * 32, *[100] * (WARM_TOKENS // 100), *[100] * 32]


def test_what_is_warm_is_not_warmed_again():
    engine = Clockwork()
    list(rates(engine, replace(TASK, input=WARM_TOKENS, batches=[1, 2]), engine.clock))
    assert [len(prompt) for prompt in engine.prompts].count(WARM_TOKENS) == 1 + 1 + 2


def test_no_prompt_that_is_timed_comes_twice_and_all_engines_get_the_same():
    engines = [Clockwork(), Clockwork()]
    for engine in engines:
        list(rates(engine, TASK, engine.clock))
    assert engines[0].prompts == engines[1].prompts
    timed = sorted(prompt for prompt in engines[0].prompts if len(prompt) == TASK.input)
    assert all(max(prompt) < TASK.vocab for prompt in timed)
    assert all(before != after for before, after in pairwise(timed))


def test_short_answers_are_no_result():
    engine = Clockwork(short_by=1)
    with pytest.raises(SystemExit, match=f"Asked for 1 answers of {CHECK_TOKENS} tokens"):
        list(rates(engine, TASK, engine.clock))


def test_steps_that_are_not_told_of_are_no_result():
    engine = Clockwork(silent=1)
    with pytest.raises(SystemExit, match=f"Answers of {CHECK_TOKENS} tokens were told of as"):
        list(rates(engine, TASK, engine.clock))


def test_memory_of_processes_that_were_started_counts():
    before = peak_bytes()
    program = "held = b'x' * 2**26; print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        assert peak_bytes() >= before + 2**26
        child.communicate(b"\n")
