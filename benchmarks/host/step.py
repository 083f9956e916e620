"""Measures what a step costs the engine process apart from the model: schedule(), execute() and sample() of core's
runner with a model that computes nothing, and update()."""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from benchmarks.host.fake_model import VOCAB, make_runner

from tessera.arrays import Array, int32
from tessera.config import SchedulerConfig
from tessera.platform import CacheGroup, CachePlan, StepRules
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler import FirstComeFirstServed, Scheduler

PROMPT = 512
BLOCK = 16
WARM = 2 * BLOCK  # steps for the prompts, and to warm up caches


@dataclass(frozen=True)
class StepTimes:
    """Microseconds of each step in schedule(), the runner and update()."""

    schedule: Array
    run: Array
    update: Array

    @property
    def whole(self) -> float:
        """The median of whole steps."""
        return float(np.median(self.schedule + self.run + self.update))


def plan_of(rows: int, length: int) -> CachePlan:
    """A plan with blocks for `rows` requests of `length` tokens."""
    blocks = rows * (-(-length // BLOCK)) + 1
    return CachePlan((CacheGroup((), "paged", BLOCK, 1, blocks),), rows, length)


def make_scheduler(plan: CachePlan, config: SchedulerConfig, *, depth: int, caching: bool) -> Scheduler:
    return Scheduler(
        config,
        plan,
        policy=FirstComeFirstServed(),
        rules=StepRules(),
        resources=(),
        eos_token_ids=(VOCAB, VOCAB + 1),
        prefix_caching=caching,
        max_model_len=plan.max_model_len,
        depth=depth,
    )


def add_requests(scheduler: Scheduler, rows: int, prompt: int, answer: int) -> None:
    """Adds requests of different lengths, so that rows reach the end of a block at different steps."""
    chance = np.random.default_rng(0)
    params = SamplingParams(max_tokens=answer, temperature=0.0)
    for key in range(rows):
        ids = int32(chance.integers(0, VOCAB, prompt - key % BLOCK))
        scheduler.add(Request(key, str(key), ids, params, answer, key))


def measure(rows: int, steps: int, *, depth: int = 1, caching: bool = True) -> StepTimes:
    """Times steps in which all rows decode."""
    answer = WARM + steps + 8
    config = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=rows * PROMPT)
    plan = plan_of(rows, PROMPT + answer + 8)
    scheduler = make_scheduler(plan, config, depth=depth, caching=caching)
    add_requests(scheduler, rows, PROMPT, answer)
    runner, clock = make_runner(plan, config), time.perf_counter
    flying: deque[tuple[float, float, object]] = deque()
    times = []
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(WARM + steps):
        began = clock()
        step = scheduler.schedule()
        scheduled = clock()
        assert step is not None
        pending = runner.sample(runner.execute(step))
        flying.append((scheduled - began, clock() - scheduled, pending))
        if len(flying) == depth:
            scheduling, running, pending = flying.popleft()
            arrived = clock()
            output = pending.result()
            taken = clock()
            scheduler.update(output)
            times.append((scheduling, running + taken - arrived, clock() - taken))
    gc.enable()
    gc.unfreeze()
    return StepTimes(*(np.array(times[WARM:]) * 1e6).T)
