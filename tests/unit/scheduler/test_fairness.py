"""A tenant that floods the queue does not take the others' turns. Time is counted in steps."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.config import SchedulerConfig
from tessera.platform import CacheGroup, CachePlan, StepRules
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler import FairShare, FirstComeFirstServed, Scheduler
from tessera.step import StepOutput
from tests.unit.scheduler.world import World, plan

ROWS, STEPS, LENGTH = 8, 1200, 400


def waits(policy, flood, depth, *, num_blocks):
    """Steps that each request of a modest tenant waits for its first token, and the requests of a flood that ended.

    It asks for less than its share: three answers at a time, again and again. The flood is a hundred requests in the
    queue at any time, with prompts of several steps and long answers."""
    rng = np.random.default_rng(0)
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=64),
        CachePlan((CacheGroup((0,), "paged", 4, 1, num_blocks),), ROWS * depth, LENGTH),
        policy=policy,
        rules=StepRules(),
        resources=(),
        eos_token_ids=(),
        prefix_caching=False,
        max_model_len=LENGTH,
        depth=depth,
    )
    number, arrived, first, ended, open_, outputs = 0, {}, {}, 0, 0, deque()
    for now in range(STEPS):
        sent = [("modest", 120, 20)] * (3 if open_ == 0 and rng.random() < 0.1 else 0)
        open_ += len(sent)
        if flood:
            sent += [("flood", 150, 60)] * (100 - scheduler.num_waiting)
        for tenant, prompt, answer in sent:
            if tenant == "modest":
                arrived[number] = now
            tokens = int32(rng.integers(0, 99, prompt))
            params = SamplingParams(max_tokens=answer)
            scheduler.add(Request(number, str(number), tokens, params, answer, number, tenant=tenant))
            number += 1
        step = scheduler.schedule()
        if step is not None:
            drawn = len(step.samples)
            outputs.append(StepOutput(step.step, step.samples, np.ones(drawn, np.int32), np.ones(drawn, np.int32)))
        if outputs and (step is None or len(outputs) == depth):
            result = scheduler.update(outputs.popleft())
            for key in result.keys.tolist():
                if key in arrived:
                    first.setdefault(key, now)
            ended += sum(end.key not in arrived for end in result.finished)
            open_ -= sum(end.key in arrived for end in result.finished)
    scheduler.check_integrity()
    return [first.get(key, STEPS) - at for key, at in arrived.items() if at < STEPS - 50], ended


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_blocks", [ROWS * LENGTH // 4, 300], ids=["rows are short", "blocks are short"])
def test_a_flood_leaves_the_others_waits_as_they_were(depth, num_blocks):
    alone, _ = waits(FairShare(), False, depth, num_blocks=num_blocks)
    beside, ended = waits(FairShare(), True, depth, num_blocks=num_blocks)
    unfair, most = waits(FirstComeFirstServed(), True, depth, num_blocks=num_blocks)
    usual, flooded, starved = (np.percentile(each, 99) for each in (alone, beside, unfair))
    assert len(beside) > 60
    assert flooded <= 1.5 * usual
    assert starved > 20 * usual, "the flood is none"
    assert ended > most / 3, "the one who floods is served as well"


def test_tenants_share_the_places_evenly():
    world = World(plan(num_rows=8), policy=FairShare(), max_num_seqs=6, budget=64)
    for tenant, count in (("one", 9), ("two", 1), ("three", 9)):
        for _ in range(count):
            world.add([1, 2, 3], 8, tenant=tenant)
    step = world.schedule()
    tenants = [world.requests[int(opened.request_id.split("-")[1])].tenant for opened in step.opened]
    assert sorted(tenants) == ["one"] * 3 + ["three"] * 2 + ["two"]
    world.update()
    world.run()


def test_a_lone_tenant_has_all_places_and_its_own_order():
    world = World(plan(num_rows=4), policy=FairShare(), max_num_seqs=2)
    keys = [world.add([1, 2, 3], 5, tenant="one") for _ in range(4)]
    world.run()
    assert sorted(keys, key=world.finished_at.get) == keys
    assert world.scheduler.counters.preemptions == 0
