"""Measures the cost of prefix caching: hashing a token, and random prompts that are all new."""

from __future__ import annotations

import gc
import time

import numpy as np
from benchmarks.host.fake_model import VOCAB
from benchmarks.host.step import BLOCK, add_requests, make_scheduler, plan_of

from tessera.arrays import int32
from tessera.config import SchedulerConfig
from tessera.kvcache.prefix_cache import PrefixCache
from tessera.step import StepOutput

PROMPT = 1024
BUDGET = 2048


def measure_hashing(tokens: int, times: int) -> float:
    """Nanoseconds per token for the hash chain of a long prompt; the median of `times` prompts."""
    cache = PrefixCache(plan_of(1, tokens).groups)
    prompt = int32(np.random.default_rng(0).integers(0, VOCAB, tokens))
    took = []
    for number in range(times):
        chain = cache.chain(number.to_bytes(8, "little"))
        began = time.perf_counter()
        chain.link(tokens // BLOCK - 1, prompt)
        took.append(time.perf_counter() - began)
    return float(np.median(took)) / tokens * 1e9


def measure_run(rows: int, answer: int, times: int) -> float:
    """Milliseconds that prefix caching adds to the scheduling of random prompts and their answers, from start to end:
    the median over pairs of runs, one with it and one without."""
    added = [_run(rows, answer, caching=True) - _run(rows, answer, caching=False) for _ in range(times)]
    return float(np.median(added)) * 1e3


def _run(rows: int, answer: int, *, caching: bool) -> float:
    """Seconds in the scheduler."""
    config = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=BUDGET)
    plan = plan_of(rows, PROMPT + answer + 8)
    scheduler = make_scheduler(plan, config, depth=1, caching=caching)
    tokens = np.zeros(rows, np.int32)
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    add_requests(scheduler, rows, PROMPT, answer)
    while scheduler.has_work:
        step = scheduler.schedule()
        assert step is not None
        count = len(step.samples)
        scheduler.update(StepOutput(step.step, step.samples, np.ones(count, np.int32), tokens[:count]))
    took = time.perf_counter() - began
    gc.enable()
    return took
