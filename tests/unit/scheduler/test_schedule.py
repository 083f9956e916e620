"""What a step holds, and when: one promise a test."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.errors import ConfigError, OverloadedError, RequestError
from tessera.platform import Resource, StepRules
from tessera.scheduler import FirstComeFirstServed, Priority
from tessera.step import RowLogprobs
from tests.unit.scheduler.fake_device import expected_answer
from tests.unit.scheduler.world import World, paged, plan, prompt_of, state, window

RNG = np.random.default_rng(0)


def grants(step):
    return dict(zip(step.rows.tolist(), step.num_scheduled_tokens.tolist(), strict=True))


def test_a_prompt_is_chunked_beside_decodes():
    world = World(plan(paged(4, 64)), budget=16)
    world.add(prompt_of(RNG, 3), 30)
    world.schedule()
    world.update()
    world.add(prompt_of(RNG, 40), 4)
    step = world.schedule()
    assert step.num_scheduled_tokens.tolist() == [1, 15]
    assert step.samples.tolist() == [step.rows[0]]
    world.update()
    assert world.schedule().num_scheduled_tokens.tolist() == [1, 15]
    world.update()
    step = world.schedule()
    assert step.num_scheduled_tokens.tolist() == [1, 10]
    assert step.samples.tolist() == step.rows.tolist()
    world.update()
    world.run()


def test_the_oldest_prompt_goes_on_however_many_decode():
    world = World(plan(paged(4, 64)), budget=6, max_num_seqs=5, rules=StepRules(chunk_multiple=4))
    leader = world.add([1, 2], 9)
    for _ in range(3):
        world.add([1, 2], 9, leader=leader)
    world.add(prompt_of(RNG, 20), 2)
    assert world.schedule().num_scheduled_tokens.tolist() == [2, 4]
    world.update()
    assert world.schedule().num_scheduled_tokens.tolist() == [1, 1, 4], "two of the four that decode sit out"
    world.update()
    world.run()


def test_rows_that_decode_take_turns_and_prompts_do_not():
    world = World(plan(num_rows=8), depth=2, max_num_seqs=5, turns=2)
    for _ in range(4):
        world.add([1, 2, 3], 12)
    prompts, *steps = [world.schedule()]
    world.update()
    for _ in range(6):
        steps.append(world.schedule())
        if len(world.outputs) == world.depth:
            world.update()
    assert prompts.rows.tolist() == [0, 1, 2, 3]
    assert [sorted(step.rows.tolist()) for step in steps] == [[0, 2], [1, 3]] * 3
    assert [step.after for step in steps] == [0, 0, 1, 2, 3, 4]
    world.add(prompt_of(RNG, 9), 2)
    step = world.schedule()
    assert grants(step) == {0: 1, 2: 1, 4: 9}


def test_a_part_without_rows_is_passed_over():
    world = World(plan(num_rows=8), depth=2, turns=2)
    world.add([1, 2, 3], 6)
    steps = [world.schedule()]
    for _ in range(3):
        steps.append(world.schedule())
        world.update()
    assert [step.rows.tolist() for step in steps] == [[0]] * 4
    world.run()


def test_steps_run_ahead_of_their_answers():
    world = World(plan(num_rows=8), depth=2)
    world.add([1, 2, 3], 3)
    first, second = world.schedule(), world.schedule()
    assert (first.step, first.after) == (0, -1)
    assert (second.step, second.after) == (1, 0)
    assert second.starts.tolist() == [3]
    assert world.scheduler.in_flight == 2
    assert world.schedule() is None, "no more than depth"
    world.update()
    third = world.schedule()
    assert third.after == 1
    world.update()
    assert world.schedule() is None, "the steps in flight draw its last token"
    outputs = world.update()
    assert [(end.reason, end.stop_token) for end in outputs.finished] == [("length", None)]
    world.run()


def test_an_end_of_text_is_seen_one_step_late_and_what_came_after_is_dropped():
    answer = expected_answer([1, 2, 3], 0, 20)
    world = World(plan(num_rows=8), depth=2, eos=(answer[4],))
    key = world.add([1, 2, 3], 20, seed=0)
    world.run()
    assert world.answers[key] == answer[: answer.index(answer[4]) + 1]
    assert world.finished[key].reason == "stop"
    assert world.finished[key].stop_token is None
    assert len(world.steps) == len(world.answers[key]) + 1, "one step too many was in flight"


def test_ignore_eos_goes_on_to_the_length():
    answer = expected_answer([1, 2, 3], 0, 20)
    world = World(plan(), eos=(answer[4],))
    key = world.add([1, 2, 3], 20, seed=0, ignore_eos=True)
    world.run()
    assert world.answers[key] == answer


@pytest.mark.parametrize("stops", ["eos", "named"])
def test_min_tokens_lets_early_stops_pass(stops):
    answer = expected_answer([1, 2, 3], 0, 20)
    stop = answer[2]
    last = next((place for place in range(7, 20) if answer[place] == stop), 19)
    world = World(plan(), eos=(stop,) if stops == "eos" else ())
    named = (stop,) if stops == "named" else ()
    key = world.add([1, 2, 3], 20, seed=0, min_tokens=8, stop_token_ids=named)
    world.run()
    assert world.answers[key] == answer[: last + 1]


def test_a_named_stop_token_is_told():
    answer = expected_answer([1, 2, 3], 0, 20)
    world = World(plan())
    key = world.add([1, 2, 3], 20, seed=0, stop_token_ids=(99, answer[3]))
    other = world.add([1, 2, 3], 20, seed=0)
    world.run()
    assert world.answers[key] == answer[: answer.index(answer[3]) + 1]
    assert (world.finished[key].reason, world.finished[key].stop_token) == ("stop", answer[3])
    assert world.finished[other].reason == "length"


def test_an_answer_ends_at_the_longest_context():
    world = World(plan(num_rows=4, max_model_len=20))
    key = world.add(prompt_of(RNG, 15), 1000)
    world.run()
    assert len(world.answers[key]) == 5
    assert world.finished[key].reason == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_ends_a_request_wherever_it_is(depth):
    world = World(plan(paged(4, 12), num_rows=2 * depth, max_model_len=40), depth=depth, max_num_seqs=2)
    running, also, waiting = (world.add(prompt_of(RNG, 9), 25) for _ in range(3))
    world.schedule()
    world.scheduler.abort([running, waiting, 77])
    finished = world.scheduler.take_finished()
    assert {(end.key, end.reason) for end in finished} == {(running, "abort"), (waiting, "abort")}
    assert world.scheduler.take_finished() == []
    for end in finished:
        world.end(end)
    world.check()
    world.run()
    assert world.answers[running] == []
    assert len(world.answers[also]) == 25


def test_an_abort_comes_out_of_the_next_update_too():
    world = World(plan(), depth=1)
    key = world.add([1, 2, 3], 5)
    world.schedule()
    world.scheduler.abort([key])
    assert [end.key for end in world.update().finished] == [key]


def test_rows_and_blocks_of_an_ended_request_stay_until_its_step_retires():
    world = World(plan(paged(4, 6), num_rows=2, max_model_len=20), depth=2, max_num_seqs=1)
    first = world.add([1] * 12, 4)
    world.add([2] * 12, 4)
    step = world.schedule()
    world.scheduler.abort([first])
    assert world.schedule() is None, "the blocks are still in use"
    world.update()
    later = world.schedule()
    assert later.freed.tolist() == step.rows.tolist()
    world.run()


def test_preemption_takes_from_the_last_to_arrive_and_keeps_what_was_in_flight(caplog):
    caplog.set_level(logging.DEBUG, "tessera.scheduler")
    world = World(plan(paged(4, 9), num_rows=4, max_model_len=32), depth=2, max_num_seqs=2, caching=False)
    keys = [world.add([key] * 8, 20) for key in (1, 2)]
    world.run()
    counters = world.scheduler.counters
    assert counters.preemptions >= 1
    assert counters.recomputed_tokens >= 8
    assert world.finished_at[keys[0]] < world.finished_at[keys[1]]
    opened = [entry for step in world.steps for entry in step.opened]
    assert all(entry.request_id == f"request-{keys[1]}" for entry in opened[2:])
    assert all(len(entry.tokens) > entry.num_prompt_tokens == 8 for entry in opened[2:])
    assert [record.request_id for record in caplog.records] == [f"request-{keys[1]}"] * counters.preemptions
    assert all(record.getMessage().startswith("preempted: ") for record in caplog.records)


def test_a_request_that_can_never_fit_is_refused_with_what_fits():
    world = World(plan(paged(4, 6), num_rows=4, max_model_len=100))
    with pytest.raises(RequestError, match="room for 21 per request"):
        world.add([1] * 10, 12)
    with pytest.raises(RequestError, match="1 to 99 tokens"):
        world.add([1] * 100, 1)
    with pytest.raises(RequestError, match="1 to 99 tokens, got 0"):
        world.add([], 1)
    key = world.add([1] * 10, 11)
    world.run()
    assert len(world.answers[key]) == 11


def test_too_many_waiting_are_refused():
    world = World(plan(), max_waiting=2)
    world.add([1], 1)
    world.add([1], 1)
    with pytest.raises(OverloadedError, match="2 requests are already waiting"):
        world.add([1], 1)
    world.schedule()
    world.add([1], 1)
    world.update()
    world.run()


def test_a_row_that_fails_ends_alone():
    world = World(plan(num_rows=8), depth=2)
    bad, good = world.add([1, 2, 3], 6), world.add([1, 2, 4], 6)
    world.device.fail.add(f"request-{bad}")
    world.run()
    assert (world.finished[bad].reason, world.finished[bad].message) == ("error", "it broke")
    assert world.answers[bad] == []
    assert len(world.answers[good]) == 6


def test_logprobs_go_to_their_request():
    world = World(plan())
    key = world.add([1, 2, 3], 2)
    step = world.schedule()
    output = world.outputs[0][0]
    output.logprobs.append(RowLogprobs(int(step.rows[0]), int32([[5]]), np.zeros((1, 1), np.float32), int32([1])))
    outputs = world.update()
    assert [(entry.key, entry.logprobs.ids.tolist()) for entry in outputs.logprobs] == [(key, [[5]])]
    world.schedule()
    world.scheduler.abort([key])
    world.outputs[0][0].logprobs.append(output.logprobs[0])
    assert world.update().logprobs == []


def test_starts_are_told_once_with_what_was_cached():
    world = World(plan(paged(4, 9), num_rows=4, max_model_len=32), max_num_seqs=2)
    first = world.add([1] * 9, 2)
    world.run()
    second = world.add([1] * 9, 20)
    third = world.add([2] * 8, 20)
    world.run()
    assert world.scheduler.counters.preemptions > 0
    assert [world.started[key].num_cached_tokens for key in (first, second, third)] == [0, 8, 0]
    counters = world.scheduler.counters
    assert (counters.requests, counters.prompt_tokens) == (3, 26)
    assert (counters.prefix_queries_tokens, counters.cached_prompt_tokens) == (26, 8)
    assert counters.generation_tokens == 42


# ---- prefixes --------------------------------------------------------------------------------------------------------


def computed(world):
    return sum(step.total_num_scheduled_tokens for step in world.steps)


def test_a_prompt_that_cannot_be_split_hits_an_equal_one_alone():
    world = World(plan(), budget=128, chunkable=False)
    prompt = prompt_of(RNG, 12)
    for tokens in (prompt, prompt, [*prompt, *prompt_of(RNG, 4)], prompt[:9]):
        key = world.add(tokens, 3)
        world.run()
        if list(tokens) == list(prompt):
            assert world.started[key].num_cached_tokens == 8 * (key > 0)
        else:
            assert world.started[key].num_cached_tokens == 0


def test_a_hit_leaves_a_token_to_compute():
    world = World(plan())
    world.add([1] * 8, 1)
    world.run()
    before = computed(world)
    world.add([1] * 8, 1)
    world.run()
    assert computed(world) - before == 4, "of two full blocks the second is computed again"


def test_answers_are_found_again():
    world = World(plan())
    key = world.add([1, 2, 3, 4], 9)
    world.run()
    before = computed(world)
    chat = [1, 2, 3, 4, *world.answers[key]]
    world.add(chat, 1)
    world.run()
    assert computed(world) - before == 1


@pytest.mark.parametrize("options", [{"salt": "other"}, {}])
def test_tenants_do_not_share(options):
    world = World(plan())
    world.add([1] * 12, 1, salt="one")
    world.run()
    before = computed(world)
    world.add([1] * 12, 1, **options)
    world.run()
    assert computed(world) - before == 12


def test_a_hit_is_as_long_in_every_group():
    world = World(plan(paged(4, 40), window(32, 6, 40)))
    world.add(list(range(30)), 1)
    world.run()
    before = computed(world)
    world.add(list(range(30)), 1)
    world.run()
    assert computed(world) - before == 6, "the unit is 12 tokens"


def test_without_prefix_caching_all_is_computed():
    world = World(plan(), caching=False)
    for _ in range(2):
        world.add([1] * 12, 1)
        world.run()
    assert computed(world) == 24
    assert world.scheduler.counters.prefix_queries_tokens == 0


# ---- answers that share a prompt -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [8, 9, 11, 12])
def test_siblings_compute_their_prompt_once(depth, length):
    world = World(plan(num_rows=4 * depth), depth=depth, caching=False)
    prompt = prompt_of(RNG, length)
    leader = world.add(prompt, 12)
    followers = [world.add(prompt, 12, leader=leader) for _ in range(3)]
    world.run()
    answers = [world.answers[key] for key in (leader, *followers)]
    assert len({tuple(answer) for answer in answers}) == 4, "each draws by its own seed"
    assert computed(world) == length + 4 * 12 - 1, "of the prompt each follower computes its last token only"
    assert world.scheduler.counters.forked_tokens == 3 * (length - 1)
    copies = sum(len(copy.sources) for step in world.steps for copy in step.copies)
    assert copies == (3 if (length - 1) % 4 else 0)


def test_a_follower_whose_leader_is_gone_goes_its_own_way():
    world = World(plan(), budget=8, caching=False)
    prompt = prompt_of(RNG, 20)
    leader = world.add(prompt, 4)
    follower = world.add(prompt, 4, leader=leader)
    world.schedule()
    assert (world.scheduler.num_running, world.scheduler.num_waiting) == (1, 1)
    world.update()
    world.schedule()
    world.scheduler.abort([leader])
    world.update()
    world.run()
    assert len(world.answers[follower]) == 4


def test_a_follower_waits_until_the_prompt_is_there_for_sure():
    """A leader that fails in flight must not take its followers along."""
    world = World(plan(num_rows=8), depth=2, caching=False)
    leader = world.add([1] * 6, 4)
    follower = world.add([1] * 6, 4, leader=leader)
    world.device.fail.add(f"request-{leader}")
    world.schedule()
    assert world.schedule().opened == []
    world.update()
    assert world.schedule().opened[0].num_computed_tokens == 0
    world.update()
    world.run()
    assert (world.finished[leader].reason, world.finished[follower].reason) == ("error", "length")


def test_a_follower_keeps_its_turn():
    world = World(plan(), budget=16, max_num_seqs=2, caching=False)
    prompt = prompt_of(RNG, 14)
    leader = world.add(prompt, 4)
    follower = world.add(prompt, 4, leader=leader)
    later = world.add(prompt_of(RNG, 4), 4)
    world.schedule()
    assert (world.scheduler.num_running, world.scheduler.num_waiting) == (2, 1), "its row is taken while it waits"
    world.update()
    world.run()
    assert world.finished_at[follower] < world.finished_at[later]


QUESTION = [5, 1, 4, 2, 3, 6, 9, 8, 7]


def test_a_chat_goes_on_from_the_last_copy_of_its_state():
    """A turn has 9 tokens and an answer of 12: the copies are behind the 8th and the 16th of them."""
    world = World(plan(paged(), state(copies=2)))
    world.add(QUESTION, 12)
    world.run()
    turn = [*QUESTION, *world.answers[0], 7, 7, 7]
    world.add(turn, 4)
    world.run()
    assert world.started[1].num_cached_tokens == 16
    world.add([*QUESTION, 8, 8], 4)
    world.run()
    assert world.started[2].num_cached_tokens == 8


def test_an_answer_keeps_one_copy_of_its_state():
    world = World(plan(paged(), state(copies=8)))
    world.add(QUESTION[:3], 30)
    world.run()
    (states,) = world.scheduler._cache.prefix_cache._blocks[1]
    assert len(states) == 1
    world.add([*QUESTION[:3], *world.answers[0]], 2)
    world.run()
    assert world.started[1].num_cached_tokens == 28


def test_copies_of_states_that_were_longest_unused_go_first():
    world = World(plan(paged(), state(num_rows=2, copies=1), num_rows=2), max_num_seqs=2)
    for number in (0, 1, 2, 0, 3):
        world.add([number] * 5, 1)
        world.run()
    found = []
    for number in (0, 3, 1):
        world.add([number] * 5, 1)
        world.run()
        found.append(world.started[world.next_key - 1].num_cached_tokens)
    assert found == [4, 4, 0]


def test_siblings_wait_for_the_copy_of_a_state_and_compute_the_rest():
    world = World(plan(paged(), state(copies=2)))
    leader = world.add([1] * 10, 3)
    for _ in range(3):
        world.add([1] * 10, 3, leader=leader)
    world.run()
    assert [world.started[key].num_cached_tokens for key in range(4)] == [0, 8, 8, 8]
    assert sum(step.total_num_scheduled_tokens for step in world.steps) == 10 + 3 * 2 + 4 * 2


def test_a_state_without_room_for_copies_is_not_shared():
    world = World(plan(paged(), state()))
    leader = world.add([1] * 9, 3)
    world.add([1] * 9, 3, leader=leader)
    step = world.schedule()
    assert sorted(grants(step).values()) == [9, 9]
    world.update()
    world.run()


# ---- what a device allows --------------------------------------------------------------------------------------------


def test_prompts_and_answers_take_turns_where_they_do_not_mix():
    world = World(plan(), budget=8, rules=StepRules(mix_prefill_decode=False))
    world.add([1, 2], 20)
    world.schedule()
    world.update()
    world.add(prompt_of(RNG, 40), 2)
    kinds = []
    for _ in range(8):
        step = world.schedule()
        kinds.append("prefill" if step.num_scheduled_tokens[0] > 1 else "decode")
        world.update()
    assert kinds == ["decode", "prefill"] * 4
    world.run()


def test_chunks_end_at_multiples():
    world = World(plan(), budget=21, rules=StepRules(chunk_multiple=8))
    world.add(prompt_of(RNG, 43), 2)
    sizes = []
    for _ in range(3):
        sizes.append(world.schedule().num_scheduled_tokens.tolist())
        world.update()
    assert sizes == [[16], [16], [11]]
    world.run()


def test_a_prompt_that_may_not_be_cut_waits_until_it_fits():
    world = World(plan(max_model_len=32), budget=32, chunked=False)
    world.add(prompt_of(RNG, 20), 3)
    world.add(prompt_of(RNG, 20), 3)
    assert world.schedule().num_scheduled_tokens.tolist() == [20]
    world.update()
    assert world.schedule().num_scheduled_tokens.tolist() == [1, 20]
    world.update()
    world.run()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 16, "chunkable": False}, "Without chunked prefill"),
        ({"rules": StepRules(chunk_multiple=64)}, "multiples of 64"),
    ],
)
def test_a_budget_that_cannot_work_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        World(plan(), **options)


# ---- the policy ------------------------------------------------------------------------------------------------------


class LastComeFirstServed(FirstComeFirstServed):
    """The other way round, and only two at once."""

    def __init__(self):
        self.heard = []
        self.come = 0

    def rank(self, request):
        self.come -= 1
        return self.come

    def may_start(self, request, num_running):
        return num_running < 2

    def step_took(self, seconds, num_tokens):
        self.heard.append((seconds, num_tokens))


def test_a_policy_chooses_who_starts_and_who_gives_way():
    policy = LastComeFirstServed()
    world = World(plan(paged(4, 9), num_rows=4, max_model_len=32), policy=policy, caching=False)
    keys = [world.add([key] * 8, 20) for key in range(4)]
    world.schedule()
    assert [entry.request_id for entry in world.steps[0].opened] == ["request-3", "request-2"]
    world.update()
    world.run()
    assert world.scheduler.counters.preemptions > 0
    assert world.finished_at[keys[3]] < world.finished_at[keys[0]]
    assert [tokens for _, tokens in policy.heard] == [step.total_num_scheduled_tokens for step in world.steps]
    assert all(seconds > 0 for seconds, _ in policy.heard)


# ---- priorities ------------------------------------------------------------------------------------------------------


def test_the_lowest_priority_number_goes_first_and_ties_go_by_arrival():
    world = World(plan(), policy=Priority(), max_num_seqs=1)
    keys = [world.add([1, 2], 1, priority=priority) for priority in (5, 0, 5, -3, 0)]
    world.run()
    assert sorted(keys, key=world.finished_at.get) == [keys[place] for place in (3, 1, 4, 0, 2)]
    assert world.scheduler.counters.preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_an_urgent_newcomer_takes_the_place_of_the_least_urgent_that_came_last(depth):
    world = World(plan(num_rows=3 * depth), policy=Priority(), max_num_seqs=3, depth=depth)
    first, second, urgent = (world.add([1, 2, 3], 20, priority=priority) for priority in (7, 7, 2))
    for _ in range(3):
        world.schedule()
        world.update()
    newcomer = world.add([4, 5, 6], 3, priority=2)
    world.run()
    assert world.scheduler.counters.preemptions == 1
    order = sorted((first, second, urgent, newcomer), key=world.finished_at.get)
    assert order[0] == newcomer
    assert order[-1] == second, "it came last of the two that are least urgent"


def test_equals_do_not_take_each_others_place():
    world = World(plan(), policy=Priority(), max_num_seqs=1)
    keys = [world.add([1, 2, 3], 9, priority=4) for _ in range(2)]
    world.run()
    assert world.scheduler.counters.preemptions == 0
    assert world.finished_at[keys[0]] < world.finished_at[keys[1]]


def test_an_urgent_newcomer_takes_blocks_of_as_many_as_it_needs_and_no_more():
    world = World(plan(paged(4, 17), num_rows=8, max_model_len=64), policy=Priority(), max_num_seqs=8, budget=64)
    keys = [world.add([key] * 13, 10, priority=1) for key in range(4)]
    world.schedule()
    world.update()
    newcomer = world.add([9] * 38, 2, priority=0)
    step = world.schedule()
    assert f"request-{newcomer}" in [opened.request_id for opened in step.opened]
    assert world.scheduler.counters.preemptions == 2, "one block more for each that goes on is kept free"
    world.update()
    world.run()
    assert all(len(world.answers[key]) == 10 for key in keys)


def test_an_urgent_prompt_goes_before_one_in_the_middle():
    world = World(plan(paged(4, 64)), policy=Priority(), budget=8)
    long = world.add(prompt_of(RNG, 40), 2, priority=1)
    world.schedule()
    world.update()
    urgent = world.add(prompt_of(RNG, 6), 2, priority=0)
    step = world.schedule()
    assert sorted(step.num_scheduled_tokens.tolist()) == [2, 6], "the long one has what is left"
    world.update()
    world.run()
    assert world.finished_at[urgent] < world.finished_at[long]
    assert world.scheduler.counters.preemptions == 0


# ---- room that is kept -----------------------------------------------------------------------------------------------


def test_a_share_of_the_blocks_stays_free_when_somebody_starts_beside_others():
    def started(watermark):
        world = World(plan(paged(4, 41), max_model_len=60), watermark=watermark, budget=160)
        for key in range(4):
            world.add([key] * 36, 2)
        world.schedule()
        running = world.scheduler.num_running
        world.update()
        world.run()
        return running

    assert [started(watermark) for watermark in (0.0, 0.2, 0.5, 0.9)] == [4, 3, 2, 1]


def test_a_lone_request_starts_whatever_is_kept_free():
    world = World(plan(paged(4, 11), max_model_len=40), watermark=0.99, budget=64)
    keys = [world.add([key] * 38, 2) for key in range(2)]
    world.run()
    assert [len(world.answers[key]) for key in keys] == [2, 2]
    assert world.scheduler.counters.preemptions == 0


def test_a_watermark_saves_preemptions():
    def preemptions(watermark):
        world = World(plan(paged(4, 33), num_rows=8, max_model_len=64), max_num_seqs=8, watermark=watermark)
        for key in range(12):
            world.add([key] * 8, 24)
        world.run()
        return world.scheduler.counters.preemptions

    without, some = preemptions(0.0), preemptions(0.3)
    assert some < without


def test_each_preemption_is_said_once():
    world = World(plan(paged(4, 33), num_rows=8, max_model_len=64), max_num_seqs=8)
    keys = [world.add([key] * 8, 24) for key in range(12)]
    world.run()
    assert len(world.preempted) == world.scheduler.counters.preemptions > 0
    assert set(world.preempted) <= set(keys)


def test_too_many_tokens_in_the_queue_are_refused():
    world = World(plan(), max_num_queued_tokens=20, max_num_seqs=1)
    first = world.add([1] * 40, 1)
    with pytest.raises(OverloadedError, match="40 prompt tokens are already waiting"):
        world.add([1], 1)
    world.schedule()
    world.add([1] * 19, 1, leader=-1)
    with pytest.raises(OverloadedError, match="19 prompt tokens"):
        world.add([1, 2], 1)
    world.add([1] * 30, 1, leader=first)  # an answer that shares a prompt adds one token
    world.update()
    world.run()


# ---- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_a_long_request_with_a_window_runs_in_a_small_cache(depth):
    world = World(
        plan(window(8, 4, 16), num_rows=depth, max_model_len=400), depth=depth, budget=16, max_num_seqs=1, caching=False
    )
    key = world.add(prompt_of(RNG, 150), 240)
    world.run()
    assert len(world.answers[key]) == 240
    assert world.scheduler.counters.preemptions == 0
    assert world.device.most_held[0] <= (8 + 16 * depth) // 4 + 1, "of 98 blocks in all"


def test_a_prefix_is_found_though_its_beginning_was_given_back():
    world = World(plan(window(8, 4, 64)), budget=16)
    prompt = prompt_of(RNG, 60)
    world.add(prompt, 1)
    world.run()
    again = world.add([*prompt, 1, 2], 3)
    world.run()
    assert world.started[again].num_cached_tokens == 60
    shorter = world.add(prompt[:30], 3)
    world.run()
    assert world.started[shorter].num_cached_tokens == 28, "given back, and still known until it is used again"


def test_siblings_share_a_prompt_behind_whose_window_blocks_go():
    world = World(plan(paged(4, 80), window(8, 4, 80), num_rows=8), max_num_seqs=3, caching=False)
    prompt = prompt_of(RNG, 41)
    leader = world.add(prompt, 30)
    early = [world.add(prompt, 30, leader=leader) for _ in range(2)]
    late = world.add(prompt, 30, leader=leader)
    world.run()
    assert world.scheduler.counters.forked_tokens == 2 * 40, "the last one came when the leader had gone on"
    assert len({tuple(world.answers[key]) for key in (leader, *early, late)}) == 4


# ---- nobody waits for what never comes -------------------------------------------------------------------------------


class Never(Resource):
    """No room for prompts of `longest` tokens and more; held by a request or a step."""

    name = "rooms"

    def __init__(self, longest, scope):
        self.longest, self.scope = longest, scope

    def fits(self, request, num_tokens):
        return num_tokens if request.num_prompt_tokens < self.longest else "the door is shut"

    def take(self, request, num_tokens):
        pass

    def release(self, request):
        pass


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("held", ["request", "step"])
def test_who_could_never_start_ends_with_an_error_and_the_others_go_on(held, depth):
    world = World(plan(num_rows=8), depth=depth, resources=[Never(9, held)])
    short, long, after = world.add([1] * 4, 3), world.add([1] * 9, 3), world.add([2] * 4, 3)
    steps = 0
    while world.scheduler.has_work and steps < 40:
        if (world.schedule() is None and world.outputs) or len(world.outputs) == depth:
            world.update()
        steps += 1
    for finished in world.scheduler.take_finished():
        world.end(finished)
    assert not world.scheduler.has_work, "it goes round and round"
    assert world.finished[long].reason == "error"
    assert world.finished[long].message == "This request cannot continue: rooms: the door is shut."
    assert [world.finished[key].reason for key in (short, after)] == ["length", "length"]


class Slow(Resource):
    """Prompts of 9 tokens and more compute none before it has prepared something for them, in so many steps."""

    name, scope = "preparations", "prompt"

    def __init__(self, steps):
        self.steps = steps

    def fits(self, request, num_tokens):
        return num_tokens if request.num_prompt_tokens < 9 or not self.steps else "it prepares something"

    def take(self, request, num_tokens):
        pass

    def prepare(self, request):
        self.steps -= 1
        return True

    def release(self, request):
        pass


@pytest.mark.parametrize("rules", [StepRules(), StepRules(mix_prefill_decode=False)])
def test_steps_prepare_what_a_request_waits_for_beside_others_and_without_any(rules):
    world = World(plan(num_rows=8), resources=[Slow(3)], rules=rules)
    world.device.prepares = True
    waiting = world.add([1] * 9, 3)
    step = world.schedule()
    assert (grants(step), step.after) == ({}, -1)
    world.update()
    behind = world.add([2] * 4, 3)
    world.run()
    assert [world.finished[key].reason for key in (waiting, behind)] == ["length", "length"]
    assert world.scheduler.counters.preemptions == 0


def test_a_policy_that_starts_nobody_ends_them():
    class Closed(FirstComeFirstServed):
        def may_start(self, request, num_running):
            return False

    world = World(plan(), policy=Closed())
    world.add([1], 1)
    assert world.schedule() is None
    (finished,) = world.scheduler.take_finished()
    assert finished.message == "This request cannot continue: the scheduling policy lets no request start."
    assert not world.scheduler.has_work


def test_a_copy_of_a_copy_is_made_of_the_first():
    """A sibling that starts in the step in which its leader copies the block they share."""
    world = World(plan(num_rows=8), max_num_seqs=3, caching=False)
    prompt = prompt_of(RNG, 6)
    short = world.add([7, 7], 2)
    leader = world.add(prompt, 20)
    keys = [leader] + [world.add(prompt, 20, leader=leader) for _ in range(3)]
    world.run()
    assert short in world.finished
    assert len({tuple(world.answers[key]) for key in keys}) == 4
