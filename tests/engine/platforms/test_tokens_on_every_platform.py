"""One engine suite: on every platform and at every depth the same tokens, whatever else happens to be going on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.engine.platforms.conftest import Alone, Start
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import VOCAB

SAMPLED = {"temperature": 1.0}
FILTERED = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01}


def prompts(count: int, *, longest: int = 60, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("params", [{}, SAMPLED, FILTERED], ids=["greedy", "sampled", "filtered"])
def test_tokens_are_those_of_a_request_alone(start: Start, alone: Alone, params: dict) -> None:
    questions = prompts(11)
    answers = start().ask(questions, 14, ignore_eos=True, **params)
    assert answers == [
        alone(question, 14, seed=seed, ignore_eos=True, **params) for seed, question in enumerate(questions)
    ]


def test_greedy_and_sampled_rows_in_one_batch_do_not_mix(start: Start, alone: Alone) -> None:
    run = start()
    each = [{}, SAMPLED, FILTERED, {"temperature": 2.5}, {**SAMPLED, "top_k": 1}]
    asked = [(question, each[i % len(each)]) for i, question in enumerate(prompts(8, seed=5))]
    keys = [run.add(question, 9, seed=3, **params) for question, params in asked]
    run.finish()
    assert [run.answers[key] for key in keys] == [alone(question, 9, seed=3, **params) for question, params in asked]


@pytest.mark.parametrize("size", [1, 7, 32])
def test_a_seed_gives_the_same_tokens_at_every_batch_size(start: Start, alone: Alone, size: int) -> None:
    run, question = start(max_num_seqs=32), prompts(1, seed=1)[0]
    others = [run.add(other, 10, seed=100 + i, **SAMPLED) for i, other in enumerate(prompts(size - 1, seed=2))]
    key = run.add(question, 10, seed=2**63 + 11, **SAMPLED)
    run.finish()
    assert len(others) == size - 1
    assert run.answers[key] == alone(question, 10, seed=2**63 + 11, **SAMPLED)


def test_siblings_share_their_prompt_and_differ_by_seed(start: Start, alone: Alone) -> None:
    run, question = start(), prompts(1, longest=50, seed=3)[0] * 2
    leader = run.add(question, 10, seed=50, **SAMPLED)
    keys = [leader] + [run.add(question, 10, seed=50 + i, leader=leader, **SAMPLED) for i in range(1, 5)]
    run.finish()
    answers = [run.answers[key] for key in keys]
    assert answers == [alone(question, 10, seed=50 + i, **SAMPLED) for i in range(5)]
    assert len({tuple(answer) for answer in answers}) > 1
    assert run.engine.stats.counters.forked_tokens == 4 * (len(question) - 1)


def test_siblings_of_a_leader_that_is_aborted_go_on(start: Start, alone: Alone) -> None:
    run, question = start(), prompts(1, longest=50, seed=3)[0] * 2
    leader = run.add(question, 30, seed=50, **SAMPLED)
    keys = [run.add(question, 10, seed=50 + i, leader=leader, **SAMPLED) for i in range(1, 4)]
    while not any(run.answers[key] for key in keys):
        run.step()
    run.engine.abort([leader])
    run.finish()
    assert [run.answers[key] for key in keys] == [alone(question, 10, seed=50 + i, **SAMPLED) for i in range(1, 4)]
    assert run.ended[leader] == "abort"


def test_a_stop_token_ends_an_answer_and_is_its_last(start: Start, alone: Alone, place: tuple[str, int]) -> None:
    run, questions = start(), prompts(6, seed=4)
    whole = [alone(question, 20, ignore_eos=True) for question in questions]
    stops = [answer[5 + i] for i, answer in enumerate(whole)]
    ends = [answer.index(stop) + 1 for answer, stop in zip(whole, stops, strict=True)]
    keys = [
        run.add(question, 20, ignore_eos=True, stop_token_ids=[stop])
        for question, stop in zip(questions, stops, strict=True)
    ]
    run.finish()
    assert [run.answers[key] for key in keys] == [answer[:end] for answer, end in zip(whole, ends, strict=True)]
    assert [(run.ended[key], run.stop_tokens[key]) for key in keys] == [("stop", stop) for stop in stops]
    # With two steps in flight each end is seen one step late, and what was drawn by then is dropped. Where prompts have
    # steps of their own, that step may be another's.
    late = (place[1] - 1) * sum(end < 20 for end in ends)
    assert run.num_drawn_in_vain == late or (place[0] == "strict-separate" and 0 < run.num_drawn_in_vain < late)


def test_the_models_own_end_of_text_ends_an_answer(start: Start, alone: Alone) -> None:
    """Whatever is drawn first is declared the end of text."""
    question = prompts(1, seed=6)[0]
    whole = alone(question, 20, ignore_eos=True)
    run = start(eos_token_ids=[whole[4]])
    key, minimum = run.add(question, 20), run.add(question, 20, min_tokens=len(whole))
    run.finish()
    end = whole.index(whole[4]) + 1
    assert run.answers[key] == whole[:end]
    assert (run.ended[key], run.stop_tokens[key]) == ("stop", None)
    assert run.answers[minimum] == alone(question, 20, ignore_eos=True, bad_words_ids=[[whole[4]]])


def test_answers_end_at_the_context_limit(start: Start, alone: Alone) -> None:
    run = start(max_model_len=48)
    (answer,) = run.ask([list(range(3, 43))], 100, ignore_eos=True)
    assert answer == alone(list(range(3, 43)), 8, ignore_eos=True)
    assert run.ended == {0: "length"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_aborts_at_any_moment_disturb_nobody(start: Start, alone: Alone, seed: int) -> None:
    run, rng = start(max_num_seqs=5, max_num_batched_tokens=40), random.Random(seed)
    questions = prompts(14, seed=seed)
    for i, question in enumerate(questions):
        run.add(question, 12, seed=i, ignore_eos=True, **SAMPLED)
    aborted = set()
    while run.engine.has_work:
        if run.live and rng.random() < 0.25:
            victim = rng.choice(run.live)
            run.engine.abort([victim, 10**6])
            aborted.add(victim)
        run.step()
    run.finish()
    for key, question in enumerate(questions):
        undisturbed = alone(question, 12, seed=key, ignore_eos=True, **SAMPLED)
        answer = run.answers[key]
        assert answer == undisturbed[: len(answer)]
        assert run.ended[key] == ("abort" if key in aborted and len(answer) < 12 else "length")
        assert key in aborted or len(answer) == 12
    assert 0 < len(aborted) < len(questions)


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_changes_no_token(start: Start, alone: Alone, caching: bool) -> None:
    run = start(max_model_len=96, kv_cache_memory_bytes=300 * 384, enable_prefix_caching=caching)
    questions = prompts(8, longest=30, seed=7)
    answers = run.ask(questions, 60, ignore_eos=True, **SAMPLED)
    assert answers == [alone(question, 60, seed=i, ignore_eos=True, **SAMPLED) for i, question in enumerate(questions)]
    assert run.engine.stats.counters.preemptions > 0


def test_a_prefix_hit_changes_no_token(start: Start, alone: Alone) -> None:
    run, prefix = start(), prompts(1, seed=8)[0] * 3
    questions = [prefix + rest for rest in prompts(6, longest=9, seed=9)]
    run.ask(questions[:1])
    answers = run.ask(questions)
    assert answers == [alone(question) for question in questions]
    cached = [run.cached[key] for key in range(1, 7)]
    assert all(len(prefix) - 24 < hit <= len(question) - 1 for hit, question in zip(cached, questions, strict=True))
    assert all(hit > 0 for hit in cached)


def test_prefixes_of_other_salts_are_not_found(start: Start) -> None:
    run, question = start(enable_prefix_caching=False), list(range(3, 90))
    first, again = run.ask([question]), run.ask([question])
    assert first == again
    assert set(run.cached.values()) == {0}


@pytest.mark.parametrize("budget", [8, 24])
def test_chunks_of_prompts_change_no_token(start: Start, alone: Alone, budget: int) -> None:
    run, questions = start(max_num_seqs=4, max_num_batched_tokens=budget), prompts(5, longest=90, seed=10)
    answers = run.ask(questions, 8, **SAMPLED)
    assert answers == [alone(question, 8, seed=i, **SAMPLED) for i, question in enumerate(questions)]
    assert max(step.total_num_scheduled_tokens for step in run.steps) <= budget
    assert any(len(step.samples) < len(step.rows) for step in run.steps)


def test_logprobs_are_the_same_everywhere(start: Start, llama, place: tuple[str, int]) -> None:
    questions = prompts(6, seed=11)
    wanted = [None, 0, 1, 5, 20, 3]

    def ask(run: EngineRun) -> EngineRun:
        for seed, (question, logprobs) in enumerate(zip(questions, wanted, strict=True)):
            run.add(question, 7, seed=seed, logprobs=logprobs, ignore_eos=True, **SAMPLED)
        run.finish()
        return run

    run = ask(start())
    with EngineRun(llama, "reference") as reference:
        expected = ask(reference)
    assert run.answers == expected.answers
    for key, count in enumerate(wanted):
        assert len(run.logprobs[key]) == (0 if count is None else 7)
        for token, row, other in zip(run.answers[key], run.logprobs[key], expected.logprobs[key], strict=False):
            assert row.ids.shape == (1, 1 + count)
            assert row.ids[0, 0] == token
            np.testing.assert_array_equal(row.ids, other.ids)
            np.testing.assert_array_equal(row.ranks, other.ranks)
            np.testing.assert_allclose(row.logprobs, other.logprobs, atol=2e-4)
            assert row.ranks[0] >= 1
            if count and row.ranks[0] <= count:
                assert row.ids[0, row.ranks[0]] == token


def test_two_steps_are_in_flight_where_that_was_asked_for(start: Start, place: tuple[str, int]) -> None:
    run = start()
    run.ask(prompts(4), 10)
    assert run.executor.most_in_flight == place[1]
