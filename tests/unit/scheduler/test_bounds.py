"""How long a request may take at most, and how much of the cache may be held for nothing."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.config import SchedulerConfig
from tessera.platform import CacheGroup, CachePlan, StepRules
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler import FirstComeFirstServed, Priority, Scheduler
from tessera.step import StepOutput
from tests.unit.scheduler.world import World, paged, plan, prompt_of

ROWS = 4


def steps_alone(world, request) -> int:
    """Steps that the oldest request takes at most, started over once: its tokens at the pace of what decoding rows
    leave of the budget, its answer, and for each block it asks for and for its row the steps in flight that may hold
    them back."""
    total = len(request.prompt) + request.max_tokens
    pace = world.config.max_num_batched_tokens - (ROWS - 1)
    pace = max(pace // world.rules.chunk_multiple, 1) * world.rules.chunk_multiple
    blocks = sum(group.blocks_of(total) for group in world.plan.groups)
    turns = 1 if world.rules.mix_prefill_decode else 2
    return turns * (-(-total // pace) + request.max_tokens) + world.depth * (blocks + 1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"caching": False},
        {"rules": StepRules(mix_prefill_decode=False)},
        {"rules": StepRules(chunk_multiple=8, max_prefill_rows=1), "budget": 11},
    ],
    ids=["plain", "no prefix cache", "not mixed", "chunks of 8"],
)
def test_under_fcfs_a_request_ends_within_a_bound_of_the_work_before_it(depth, options):
    """However many come after it: newcomers keep the queue full and the pool too small all the time."""
    used = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        world = World(plan(paged(4, 13), num_rows=ROWS * depth, max_model_len=48), depth=depth, **options)
        begun, bounds = {}, {}
        while len(bounds) < 40 or world.scheduler.has_work:
            while len(bounds) < 40 and world.scheduler.num_waiting < 3:
                prompt, leader = prompt_of(rng, int(rng.integers(1, 28))), -1
                for _ in range(int(rng.integers(1, 4))):
                    before = [world.requests[key] for key in bounds if key not in world.finished]
                    key = world.add(prompt, int(rng.integers(1, 21)), leader=leader)
                    leader = key if leader < 0 else leader
                    work = sum(steps_alone(world, request) for request in [*before, world.requests[key]])
                    begun[key], bounds[key] = len(world.steps), work
            if world.schedule() is None or len(world.outputs) == depth:
                world.update()
        assert world.scheduler.counters.preemptions > 0
        for key, bound in bounds.items():
            took = world.finished_at[key] - begun[key]
            assert took <= bound
            used.append(took / bound)
    assert max(used) > 0.25, "a bound that is never near says nothing"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"caching": False}, {"watermark": 0.2}], ids=["plain", "no cache", "watermark"]
)
def test_under_priority_nobody_waits_once_nothing_more_urgent_arrives(depth, options):
    """However many less urgent ones go on arriving: each ends within a bound of the work that goes before it, from
    when the last of that arrived."""
    used = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        world = World(
            plan(paged(4, 13), num_rows=ROWS * depth, max_model_len=48), depth=depth, policy=Priority(), **options
        )
        last, priority, unfinished = {}, {}, set()
        while len(priority) < 60 or world.scheduler.has_work:
            while len(priority) < 60 and world.scheduler.num_waiting < 4:
                rank = int(rng.integers(0, 4)) if len(priority) < 30 else 5  # less urgent ones keep the queue full
                key = world.add(prompt_of(rng, int(rng.integers(1, 28))), int(rng.integers(1, 21)), priority=rank)
                priority[key] = rank
                unfinished = {other for other in priority if other not in world.finished}
                before = [world.requests[other] for other in unfinished if priority[other] <= rank]
                last[key] = len(world.steps), sum(steps_alone(world, request) for request in before)
                for other in unfinished:
                    if priority[other] > rank:
                        ahead = [
                            world.requests[one]
                            for one in unfinished
                            if (priority[one], one) <= (priority[other], other)
                        ]
                        last[other] = len(world.steps), sum(steps_alone(world, request) for request in ahead)
            if world.schedule() is None or len(world.outputs) == depth:
                world.update()
        assert world.scheduler.counters.preemptions > 0
        for key, (begun, bound) in last.items():
            took = world.finished_at[key] - begun
            assert took <= bound
            used.append(took / bound)
    assert max(used) > 0.25, "a bound that is never near says nothing"


@pytest.mark.parametrize("depth", [1, 2])
def test_at_most_one_part_in_a_hundred_of_the_cache_is_held_for_nothing(depth):
    """Over all requests, at every step, what is allocated ahead for steps in flight counted as held."""
    rng = np.random.default_rng(depth)
    rows, block_size, length = 32, 16, 1600
    group = CacheGroup((0,), "paged", block_size, 1, rows * 94 + 1)
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=2048),
        CachePlan((group,), rows * depth, length),
        policy=FirstComeFirstServed(),
        rules=StepRules(),
        resources=(),
        eos_token_ids=(),
        prefix_caching=True,
        max_model_len=length,
        depth=depth,
    )
    for key in range(200):
        total = int(rng.integers(500, 1501))
        answer = int(rng.integers(20, 60))
        prompt = int32(rng.integers(0, 1000, total - answer))
        scheduler.add(Request(key, str(key), prompt, SamplingParams(max_tokens=answer), answer, key))
    held = room = 0
    outputs = deque()
    while scheduler.has_work:
        step = scheduler.schedule()
        if step is not None:
            drawn = len(step.samples)
            outputs.append(StepOutput(step.step, step.samples, np.ones(drawn, np.int32), np.ones(drawn, np.int32)))
            held += int(scheduler._rows.num_computed_tokens.sum())
            room += int(scheduler._cache.tables.counts[0].sum()) * block_size
        if step is None or len(outputs) == depth:
            scheduler.update(outputs.popleft())
    scheduler.check_integrity()
    waste = 1 - held / room
    assert scheduler.counters.steps > 200
    assert 0 < waste <= 0.01
