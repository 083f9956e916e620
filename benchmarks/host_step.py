"""Microseconds of schedule() and update() in a step where all rows decode, answers being made up: what the host costs
beside the device.

Run: PYTHONPATH=core python benchmarks/host_step.py [--rows 256] [--steps 400] [--depth 1]
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque

import numpy as np

from tessera.arrays import Array, int32
from tessera.config import SchedulerConfig
from tessera.platform import CacheGroup, CachePlan, StepRules
from tessera.request import Request, SamplingParams
from tessera.scheduler import FirstComeFirstServed, Scheduler
from tessera.step import SchedulerOutput, StepOutput

VOCAB = 32_000
PROMPT = 512


def build(rows: int, steps: int, depth: int, caching: bool) -> Scheduler:
    """A scheduler whose rows all decode."""
    length = PROMPT + steps + 64
    blocks = rows * (-(-length // 16)) + 1
    plan = CachePlan((CacheGroup((0,), "paged", 16, 1, blocks),), rows * depth, length)
    config = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=rows * PROMPT)
    scheduler = Scheduler(
        config,
        plan,
        policy=FirstComeFirstServed(),
        rules=StepRules(),
        resources=(),
        eos_token_ids=(VOCAB, VOCAB + 1),
        prefix_caching=caching,
        max_model_len=length,
        depth=depth,
    )
    rng = np.random.default_rng(0)
    for key in range(rows):
        # Lengths differ, so that rows cross a block's edge at different steps.
        prompt = int32(rng.integers(0, VOCAB, PROMPT - key % 16))
        params = SamplingParams(max_tokens=steps + 32, temperature=0.0)
        scheduler.add(Request(key, str(key), prompt, params, steps + 32, key))
    return scheduler


def answer(step: SchedulerOutput, tokens: Array) -> StepOutput:
    count = len(step.samples)
    return StepOutput(step.step, step.samples, np.ones(count, np.int32), tokens[:count])


def measure(rows: int, steps: int, depth: int, caching: bool) -> tuple[Array, Array]:
    """Seconds of each schedule() and of each update()."""
    scheduler = build(rows, steps, depth, caching)
    tokens = int32(np.random.default_rng(1).integers(0, VOCAB, rows))
    flying: deque[SchedulerOutput] = deque()
    scheduling, updating = [], []
    gc.freeze()
    gc.disable()
    for _ in range(steps):
        began = time.perf_counter()
        step = scheduler.schedule()
        scheduling.append(time.perf_counter() - began)
        assert step is not None
        flying.append(step)
        if len(flying) == depth:
            output = answer(flying.popleft(), tokens)
            began = time.perf_counter()
            scheduler.update(output)
            updating.append(time.perf_counter() - began)
    gc.enable()
    warm = 16  # the prompts, and caches of the machine
    return np.array(scheduling[warm:]), np.array(updating[warm:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=1)
    chosen = parser.parse_args()
    for caching in (False, True):
        times = measure(chosen.rows, chosen.steps, chosen.depth, caching)
        schedule, update = (np.median(part) * 1e6 for part in times)
        slowest = sum(np.percentile(part, 99) for part in times) * 1e6
        print(
            f"{chosen.rows} rows, depth {chosen.depth}, prefix caching {'on ' if caching else 'off'}: "
            f"schedule {schedule:.0f} us + update {update:.0f} us = {schedule + update:.0f} us a step "
            f"(median; 99th percentile {slowest:.0f} us)"
        )


if __name__ == "__main__":
    main()
