"""Drafts: who proposes them, how many a row gets, and that a step that verifies them leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.config.engine import SpeculativeConfig
from tessera.platform import FeatureState
from tessera.scheduler.features import RequestFeatures
from tessera.scheduler.speculation import (
    ALLOWANCE,
    MOST_CREDIT,
    TRIED_ROWS,
    DraftLengths,
    NgramProposer,
)
from tessera.step_times import StepTimes
from tests.unit.scheduler.fake_device import expected_answer
from tests.unit.scheduler.test_state_machine import Bandwidth
from tests.unit.scheduler.world import World, paged, plan, prompt_of, window


def proposed(tokens, most, shortest=1, longest=3):
    return NgramProposer(SpeculativeConfig("ngram", most, shortest, longest)).propose(0, int32(tokens), most).tolist()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5, 6, 7, 8, 9, 5, 6], [7, 8, 9, 5]),
        ([5, 6, 7, 1, 6, 8, 2, 5, 6], [7, 1, 6, 8]),  # two tokens that match win over one, which is later
        ([1, 6, 7, 1, 6, 8, 1, 6], [8, 1, 6, 8]),  # of equal ones the later
        ([4, 4], [4, 4, 4, 4]),
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),  # goes on as it would repeat
        ([1, 2, 3], []),
        ([1], []),
        ([], []),
    ],
)
def test_the_row_s_last_tokens_are_looked_up(tokens, expected):
    assert proposed(tokens, 4) == expected


def test_as_many_tokens_match_as_are_asked_for():
    tokens = [7, 1, 2, 3, 9, 8, 2, 3]
    assert proposed(tokens, 2, shortest=2) == [9, 8]
    assert proposed(tokens, 2, shortest=3) == []
    assert proposed([6, 1, 2, 3, 4, 9, 5, 2, 3, 4], 1, shortest=3, longest=3) == [9]
    assert proposed([2, 3, 9, 2, 3], 1, shortest=2, longest=5) == [9]


def lengths_of(seconds, most=4, rows=64):
    lengths = DraftLengths(rows, most)
    for number, took in seconds.items():
        lengths.times.add(number, took)
        lengths.times.add(number, took)
    return lengths


def test_drafts_are_as_many_as_pay():
    free, dear, too_dear = {1: 1.0, 5: 1.02}, {1: 1.0, 5: 6.0}, {1: 1.0, 5: 4.6}
    rows, limits = np.array([3]), int32([4])
    for seconds, accepted, expected in ((free, 4, 4), (dear, 4, 0), (too_dear, 4, 0), (free, 0, 0)):
        lengths = lengths_of(seconds)
        for _ in range(40):
            lengths.learn(rows, int32([4]), int32([accepted]))
        assert lengths.choose(rows, limits, 1).tolist() == [expected]
    assert lengths_of(free).choose(rows, int32([2]), 1).tolist() == [2], "no more than a row may have"
    assert lengths_of({}).suspended(1), "plain steps come first"


def test_rows_whose_drafts_are_accepted_get_them():
    lengths, rows = lengths_of({2: 1.0, 6: 1.05, 10: 3.0}), np.array([1, 2])
    for _ in range(40):
        lengths.learn(rows, int32([4, 4]), int32([4, 0]))
    chosen = lengths.choose(rows, int32([4, 4]), 2)
    assert chosen[0] >= 1
    assert chosen[1] == 0
    lengths.forget(1)
    assert lengths.choose(rows, int32([4, 4]), 2)[0] <= chosen[0]


def test_no_row_gets_slower_for_the_drafts_of_others():
    rows, limits = np.array([1, 2]), int32([4, 4])
    for accepted, expected in (([4, 0], [0, 0]), ([4, 4], [4, 4])):
        lengths = lengths_of({2: 1.0, 6: 1.6, 10: 2.2})
        for _ in range(40):
            lengths.learn(rows, int32([4, 4]), int32(accepted))
        assert lengths.choose(rows, limits, 2).tolist() == expected


def test_what_drafts_lose_is_paid_before_the_next_ones():
    lengths = lengths_of({8: 1.0, 16: 2.5})
    assert not lengths.suspended(8)
    lengths.step_took(2.5, 8, 16, 2)  # a quarter of a token more of each row, in 2.5 times the time
    assert lengths.suspended(8)
    lost = 1.5 - 0.25 - 1.0  # what it began with
    steps = next(count for count in range(1000) if not (lengths.step_took(1.0, 8, 8, 0) or lengths.suspended(8)))
    assert steps <= lost / ALLOWANCE + 1
    lengths.looked(0.25, 8, waited=False)
    lengths.looked(0.0, 8, waited=True)
    assert lengths.credit == pytest.approx(-1.25, abs=2 * ALLOWANCE)
    for _ in range(9):
        lengths.step_took(2.5, 8, 16, 0)
    assert lengths.credit == -MOST_CREDIT, "one bad time does not suspend them for ever"
    for _ in range(9):
        lengths.step_took(2.5, 8, 16, 32)
    assert lengths.credit == MOST_CREDIT, "one good time does not pay for ever"


def test_drafts_that_are_made_and_not_verified_are_paid():
    lengths = lengths_of({4: 1.0, 8: 1.2})
    lengths.step_took(1.4, 4, 4, 0, usual=False)
    assert lengths.credit == pytest.approx(1.0 + ALLOWANCE - 0.4)
    lengths.step_took(0.9, 4, 8, 2, usual=False)
    assert lengths.credit == pytest.approx(1.0 + 2 * ALLOWANCE - 0.4 + 0.5 + 0.1)
    assert lengths.times.seconds(np.array([4, 8])) == pytest.approx([1.0, 1.2]), "no step of that kind is like it"


def test_a_slow_step_is_not_believed_at_once():
    times = StepTimes()
    times.add(1, 10.0)
    assert not times.knows(1), "the first time may include what is done once"
    times.add(1, 1.0)
    times.add(1, 50.0)
    assert times.knows(1)
    assert times.seconds(np.array([1])) == pytest.approx(1.1)
    times.add(9, 2.1)
    assert times.seconds(np.array([1, 5, 9, 100])) == pytest.approx([1.1, 1.6, 2.1, 2.1])
    assert StepTimes._place(32) == 32
    assert StepTimes._place(100) == 96


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_the_same_with_drafts(depth, seed):
    """And every promise of the world holds after every move: nothing is lost, held twice, or known to the prefix cache
    that is not there."""
    chance = np.random.default_rng(seed)
    groups = (paged(4, 26), window(6, 4, 40)) if seed % 2 else (paged(4, 26),)
    world = World(plan(*groups, num_rows=8 * depth, max_model_len=64), depth=depth, drafts=1 + 2 * seed, budget=24)
    shared = prompt_of(chance, 9)
    for number in range(14):
        prompt = shared + prompt_of(chance, 3) if number % 3 else prompt_of(chance, int(chance.integers(1, 30)))
        leader = world.add(prompt, int(chance.integers(1, 30)))
        if number % 4 == 0:
            world.add(prompt, int(chance.integers(1, 20)), leader=leader)
        for _ in range(int(chance.integers(0, 4))):
            if (world.schedule() is None or len(world.outputs) >= depth) and world.outputs:
                world.update()
    world.run()
    counters = world.scheduler.counters
    assert 0 < counters.accepted_tokens < counters.draft_tokens
    assert counters.drafts <= counters.draft_tokens
    assert counters.accepted_tokens == sum(world.scheduler.speculation.lengths.learned)
    assert sum(len(step.drafts) for step in world.steps) == counters.draft_tokens


def test_nobody_is_preempted_for_drafts():
    world = World(plan(paged(4, 7), max_model_len=24), drafts=7, caching=False)
    for _ in range(3):
        world.add([1, 2, 3, 4, 5], 2)
    world.run()
    assert not world.scheduler.counters.preemptions


def test_drafts_do_not_exceed_the_budget_nor_the_answer():
    world = World(plan(max_model_len=32), drafts=8, budget=6)
    key = world.add([1, 2, 3], 5)
    world.add([4, 5, 6], 40)
    world.run()
    assert len(world.answers[key]) == 5
    assert any(len(step.drafts) for step in world.steps)
    assert max(step.total_num_scheduled_tokens for step in world.steps) <= 6
    assert all((step.starts + step.num_scheduled_tokens).max() < 32 for step in world.steps)


def test_drafts_ask_resources():
    world = World(plan(), drafts=8, resources=(Bandwidth(6),))
    world.add([1, 2, 3], 20)
    world.add([4, 5, 6], 20)
    world.run()
    assert world.scheduler.counters.accepted_tokens
    assert max(step.total_num_scheduled_tokens for step in world.steps) <= 6


def test_what_follows_the_end_is_dropped():
    prompt, seed = [5, 6, 7], 3
    answer = expected_answer(prompt, seed, 12)
    stop = next(token for place, token in enumerate(answer) if place >= 4 and token not in answer[:place])
    world = World(plan(), drafts=8)
    world.scheduler.speculation.lengths.choose = lambda rows, limits, number: limits
    key = world.add(prompt, 12, seed=seed, stop_token_ids=[stop])
    world.run()
    assert world.answers[key] == answer[: answer.index(stop) + 1]
    assert world.finished[key].stop_token == stop


def test_a_row_waits_for_its_newest_token_only_while_drafts_are_worth_it():
    world = World(plan(num_rows=8), depth=2, drafts=2)
    speculation = world.scheduler.speculation
    speculation.lengths.suspended = lambda number: True
    world.add([1, 2, 3], 20)
    assert world.schedule() is not None
    assert world.schedule() is not None, "it runs ahead"
    world.update()
    speculation.lengths.suspended = lambda number: False
    speculation.lengths.choose = lambda rows, limits, number: limits
    assert len(world.schedule().drafts) == 0, "its newest token is not known yet"
    world.update()
    assert world.schedule() is None
    world.update()
    assert len(world.schedule().drafts) == 2
    assert world.schedule() is None, "where it goes on is not known"
    world.update()
    world.run()


class Evens(FeatureState):
    """Only even tokens, and the fourth is the last."""

    masks = True

    def __init__(self):
        self.accepted = []

    def mask(self, bits):
        bits[:] = len(self.accepted)

    def accept(self, token):
        self.accepted.append(token)
        return token % 2 == 0

    def num_allowed(self, drafts):
        odd = np.flatnonzero(drafts % 2)
        return int(odd[0]) if len(odd) else len(drafts)

    def rollback(self, num_tokens):
        del self.accepted[len(self.accepted) - num_tokens :]

    @property
    def complete(self):
        return len(self.accepted) >= 4


def test_each_position_has_its_mask_and_the_feature_is_where_it_was():
    state = Evens()
    state.accept(2)
    features = RequestFeatures([state])
    assert features.num_allowed(int32([4, 6, 7, 8])) == 2
    bits = np.full((5, 1), -1, np.int32)
    features.mask(bits, int32([4, 6, 8, 2]))
    assert bits[:, 0].tolist() == [1, 2, 3, -1, -1], "nothing is restricted after the end"
    assert state.accepted == [2]
    assert RequestFeatures([state, FeatureState()]).num_allowed(int32([4])) == 1


def in_simulated_time(world, seconds):
    """The real lengths, in a world whose steps take as long as `seconds` says of their tokens, and looks no time. Gives
    the list of what steps take."""
    lengths, spent = DraftLengths(world.plan.num_rows, 4), []
    took, looked = lengths.step_took, lengths.looked

    def step_took(_, num_rows, num_tokens, num_accepted):
        spent.append(seconds(num_tokens))
        took(spent[-1], num_rows, num_tokens, num_accepted)

    lengths.step_took, lengths.looked = step_took, lambda _, *given, **kind: looked(0.0, *given, **kind)
    world.scheduler.speculation.lengths = lengths
    return spent


class Always:
    """Proposes one token, in the world of these tests nearly always a wrong one."""

    def propose(self, row, tokens, most):
        return np.full(most, 1, np.int32)


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_that_do_not_pay_cost_next_to_nothing(depth):
    """Four rows, and each draft costs as much as a token. What steps with drafts took, beyond what their tokens are
    worth, is at most the allowance and what the account began with."""
    world = World(plan(paged(16, 200), max_model_len=640, num_rows=4 * depth), drafts=4, depth=depth)
    speculation, spent = world.scheduler.speculation, in_simulated_time(world, lambda tokens: tokens / 4)
    speculation.proposer = Always()
    for number in range(4):
        world.add([number], 600)
    world.run()
    worth = world.scheduler.counters.generation_tokens / 4
    assert world.scheduler.counters.drafts
    assert sum(spent) <= (1 + ALLOWANCE) * worth + 2 + MOST_CREDIT
    late = [step for step in world.steps[100:] if len(step.drafts)]
    assert late, "they are tried again"
    assert all(len(step.drafts) <= TRIED_ROWS for step in late)


def test_all_rows_are_tried_in_turn():
    world = World(plan(paged(16, 200), max_model_len=300, num_rows=9), drafts=4, max_num_seqs=9)
    in_simulated_time(world, lambda tokens: tokens / 9)
    world.scheduler.speculation.proposer = Always()
    for number in range(9):
        world.add([number], 250)
    world.run()
    tried = [step.rows[step.num_scheduled_tokens > 1].tolist() for step in world.steps if len(step.drafts)]
    assert {row for rows in tried[-5:] for row in rows} == set(range(9))


def test_right_guesses_come_back():
    """Guesses are wrong for a while and then right."""
    world = World(plan(paged(16, 200), max_model_len=900), drafts=4, max_num_seqs=1)
    speculation, _ = world.scheduler.speculation, in_simulated_time(world, lambda tokens: 1.0 + 0.05 * tokens)
    guesses, speculation.proposer = speculation.proposer, Always()
    world.add([1, 2, 3], 200)
    world.run()
    before = world.scheduler.counters.steps
    assert before > 190
    speculation.proposer = guesses
    world.add([1, 2, 3], 400)
    world.run()
    assert world.scheduler.counters.steps - before < 250


def test_right_guesses_save_steps():
    """The real lengths, on a device on which drafts cost nothing; then a proposer that finds nothing."""
    world = World(plan(paged(16, 64), max_model_len=400), drafts=4, max_num_seqs=1)
    speculation = world.scheduler.speculation
    in_simulated_time(world, lambda tokens: 1.0)
    key = world.add([1, 2, 3], 300)
    world.run()
    counters = world.scheduler.counters
    assert counters.accepted_tokens > 100, "its guesses are right more often than not"
    assert counters.steps < 250
    assert len(world.answers[key]) == 300
    speculation.proposer = NgramProposer(SpeculativeConfig("ngram", 4, 20, 20))
    before = counters.draft_tokens
    world.add([4, 5, 6], 100)
    world.run()
    assert counters.draft_tokens == before
