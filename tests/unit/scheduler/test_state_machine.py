"""Any order of arrivals, aborts, failures, steps and answers, on many kinds of caches and devices: the fake device
checks every step, the scheduler its own books after every move, and in the end everybody has the answer that is his."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tessera.platform import Resource, StepRules
from tessera.scheduler import FairShare, Priority
from tests.unit.scheduler.world import World, paged, plan, state, window

ROWS = 4


class Tickets(Resource):
    """Only so many requests at once."""

    name = "tickets"

    def __init__(self, count: int) -> None:
        self.count = count
        self.holders: set[int] = set()

    def fits(self, request, num_tokens):
        return num_tokens if len(self.holders) < self.count else "no ticket is left"

    def take(self, request, num_tokens):
        assert request.key not in self.holders
        self.holders.add(request.key)

    def release(self, request):
        self.holders.remove(request.key)


class Bandwidth(Resource):
    """Only so many tokens a step, and of one request half of them."""

    name = "bandwidth"
    scope = "step"

    def __init__(self, tokens: int) -> None:
        self.tokens = self.left = tokens

    def begin_step(self):
        self.left = self.tokens

    def fits(self, request, num_tokens):
        room = min(self.left, self.tokens // 2)
        return min(num_tokens, room) if room else "the step is full"

    def take(self, request, num_tokens):
        self.left -= num_tokens
        assert self.left >= 0

    def release(self, request):
        raise AssertionError("nothing of a step is released")


KINDS = {
    "plain": lambda depth: World(plan(paged(4, 20), num_rows=ROWS * depth, max_model_len=48), depth=depth),
    "no prefix cache": lambda depth: World(
        plan(paged(4, 15), num_rows=ROWS * depth, max_model_len=48), depth=depth, caching=False
    ),
    "a window": lambda depth: World(
        plan(window(5, 4, 24), num_rows=ROWS * depth, max_model_len=48), depth=depth, budget=9, watermark=0.1
    ),
    "stages": lambda depth: World(
        plan(paged(4, 20), num_rows=ROWS * depth, max_model_len=48), depth=depth, turns=min(depth, 3), budget=12
    ),
    "priority": lambda depth: World(
        plan(paged(4, 18), num_rows=ROWS * depth, max_model_len=48), depth=depth, policy=Priority(), watermark=0.2
    ),
    "fair": lambda depth: World(
        plan(paged(4, 20), num_rows=ROWS * depth, max_model_len=48), depth=depth, policy=FairShare(), budget=12
    ),
    "priority, windows": lambda depth: World(
        plan(paged(4, 18), window(7, 6, 12), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        policy=Priority(),
        budget=12,
        rules=StepRules(max_prefill_rows=2),
    ),
    "priority, not mixed": lambda depth: World(
        plan(paged(4, 18), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        policy=Priority(),
        budget=12,
        rules=StepRules(mix_prefill_decode=False, max_prefill_rows=2),
        resources=(Tickets(2),),
    ),
    "two groups": lambda depth: World(
        plan(paged(4, 18), window(9, 6, 14), num_rows=ROWS * depth, max_model_len=48), depth=depth
    ),
    "a state": lambda depth: World(
        plan(paged(4, 16), state(ROWS * depth), num_rows=ROWS * depth, max_model_len=48), depth=depth
    ),
    "copies of states": lambda depth: World(
        plan(paged(4, 20), state(ROWS * depth, 2), num_rows=ROWS * depth, max_model_len=48), depth=depth
    ),
    "states beside windows": lambda depth: World(
        plan(paged(4, 20), state(ROWS * depth, 3), window(7, 2, 24), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        budget=9,
        policy=Priority(),
    ),
    "copies of states alone": lambda depth: World(
        plan(state(ROWS * depth, 1), num_rows=ROWS * depth, max_model_len=48), depth=depth
    ),
    "prompts whole": lambda depth: World(
        plan(paged(4, 18), num_rows=ROWS * depth, max_model_len=48), depth=depth, budget=48, chunked=False
    ),
    "not mixed": lambda depth: World(
        plan(paged(4, 18), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        rules=StepRules(mix_prefill_decode=False, chunk_multiple=8, max_prefill_rows=2, max_rows=3),
        eos=(3, 4),
    ),
    "chunks of 8": lambda depth: World(
        plan(paged(6, 12), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        budget=11,
        rules=StepRules(chunk_multiple=8, max_tokens_per_request=16, max_prefill_rows=1),
    ),
    "resources": lambda depth: World(
        plan(paged(4, 18), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        resources=(Tickets(3), Bandwidth(9)),
    ),
    "drafts": lambda depth: World(
        plan(paged(4, 20), num_rows=ROWS * depth, max_model_len=48), depth=depth, drafts=3, eos=(3, 4)
    ),
    "drafts, windows": lambda depth: World(
        plan(paged(4, 18), window(7, 6, 14), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        budget=12,
        drafts=5,
        policy=Priority(),
    ),
    "drafts, copies of states": lambda depth: World(
        plan(paged(4, 20), state(ROWS * depth, 2, drafts=3), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        drafts=3,
        eos=(3, 4),
    ),
    "drafts, states alone": lambda depth: World(
        plan(state(ROWS * depth, 1, drafts=5), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        drafts=5,
        policy=Priority(),
    ),
    "drafts, not mixed": lambda depth: World(
        plan(paged(4, 18), num_rows=ROWS * depth, max_model_len=48),
        depth=depth,
        drafts=4,
        rules=StepRules(mix_prefill_decode=False, chunk_multiple=8, max_prefill_rows=2),
        resources=(Tickets(3), Bandwidth(20)),
    ),
}


class SchedulerMachine(RuleBasedStateMachine):
    make: staticmethod

    @initialize()
    def begin(self):
        self.world = type(self).make()

    @rule(
        length=st.integers(1, 40),
        shared=st.integers(0, 40),
        max_tokens=st.integers(1, 20),
        siblings=st.sampled_from([0, 0, 1, 2]),
        salt=st.sampled_from(["", "", "tenant"]),
        min_tokens=st.sampled_from([0, 0, 5]),
        stops=st.sampled_from([(), (7, 8, 9)]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["", "", "other"]),
    )
    def add(self, length, shared, max_tokens, siblings, salt, min_tokens, stops, priority, tenant):
        prompt = [token % 5 if token < shared else (token * length) % 50 for token in range(length)]
        options = {"salt": salt, "min_tokens": min(min_tokens, max_tokens), "stop_token_ids": stops}
        options |= {"priority": priority, "tenant": tenant}
        leader = self.world.add(prompt, max_tokens, **options)
        for _ in range(siblings):
            self.world.add(prompt, max_tokens, leader=leader, **options)

    @rule(steps=st.integers(1, 6))
    def go_on(self, steps):
        world = self.world
        for _ in range(steps):
            idle = world.schedule() is None
            if world.outputs and (idle or len(world.outputs) == world.depth):
                world.update()

    @rule()
    def schedule(self):
        self.world.schedule()

    @precondition(lambda self: self.world.outputs)
    @rule()
    def update(self):
        self.world.update()

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data())
    def abort(self, data):
        world = self.world
        world.scheduler.abort(data.draw(st.sets(st.sampled_from(sorted(world.requests)), max_size=3)) | {10_000})
        for finished in world.scheduler.take_finished():
            assert finished.reason == "abort"
            world.end(finished)
        world.check()

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data())
    def fail(self, data):
        key = data.draw(st.sampled_from(sorted(self.world.requests)))
        self.world.device.fail.add(f"request-{key}")

    def teardown(self):
        world = self.world
        world.run()
        for key, finished in world.finished.items():
            assert (finished.reason == "error") <= (f"request-{key}" in world.device.fail)
        for resource in world.resources:
            if isinstance(resource, Tickets):
                assert not resource.holders
        if isinstance(world.policy, FairShare):
            assert not world.policy._usage, "a place is counted that nobody has"
            assert not world.policy._tokens
        for group, held in zip(world.plan.groups, world.device.most_held, strict=True):
            ahead = world.depth * world.config.max_num_batched_tokens
            assert held <= group.most_held(world.plan.max_model_len, ahead)


# With one step in flight there is less to get wrong: each day for the two kinds that are most of the others' parts.
BASIC = ("plain", "no prefix cache")
CASES = [
    *((kind, 2) for kind in KINDS),
    *((kind, depth) for kind in BASIC for depth in (1, 3)),
    *(pytest.param(kind, 1, marks=pytest.mark.nightly) for kind in KINDS if kind not in BASIC),
]


@pytest.mark.parametrize(("kind", "depth"), CASES)
def test_any_order_of_events(kind, depth):
    class Machine(SchedulerMachine):
        make = staticmethod(lambda: KINDS[kind](depth))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
