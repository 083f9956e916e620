"""Prompts that are pooled slow those down who read an answer by little, and get all that nobody else needs. Time is
that of a device whose steps take as long as a clock says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.config import SchedulerConfig
from tessera.platform import CacheGroup, CachePlan, StepRules
from tessera.pooling_params import RequestPooling
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler import FairShare, FirstComeFirstServed, Scheduler
from tessera.scheduler.budget import TokenBudget
from tessera.scheduler.pooled_share import PooledShare
from tessera.scheduler.requests import StepInFlight
from tessera.scheduler.rows import Rows
from tessera.step import RowPooled, StepOutput

ROWS, BUDGET, LENGTH = 24, 512, 400
BASE, FREE, EACH = 0.010, 8, 0.00025
"""Seconds of a step: of any, for tokens beyond so many, of each."""


def linear(num_tokens: int) -> float:
    return BASE + EACH * max(num_tokens - FREE, 0)


@dataclass
class Served:
    # Seconds of steps in which chats decode.
    gaps: list[float] = field(default_factory=list)
    # Of chats, from arrival to their first token.
    waits: list[float] = field(default_factory=list)
    # Tokens of prompts that were pooled, and all seconds.
    pooled: int = 0
    seconds: float = 0.0
    # The most pooled rows that a step had begun and not ended, while chats decode.
    halves: int = 0


def serve(
    *,
    chats: int = 4,
    flood: int = 100,
    steps: int = 700,
    shared: bool = True,
    depth: int = 1,
    step_seconds: Callable[[int], float] = linear,
    **options: Any,
) -> Served:
    """So many chats at any time, one after the other, and so many prompts to pool in the queue."""
    rng, now, served = np.random.default_rng(0), 0.0, Served()
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, chunked_prefill=options.pop("chunked", True)),
        CachePlan((CacheGroup((0,), "paged", 4, 1, ROWS * LENGTH // 4),), ROWS * depth, LENGTH),
        policy=options.pop("policy", None) or FirstComeFirstServed(),
        rules=options.pop("rules", None) or StepRules(),
        resources=(),
        eos_token_ids=(),
        prefix_caching=False,
        max_model_len=LENGTH,
        depth=depth,
        pools_beside=shared,
        clock=lambda: now,
        **options,
    )
    number, arrived, talking, queued, sizes, outputs = 0, {}, 0, 0, {}, deque()
    for _ in range(steps):
        asked = [False] * (chats - talking) + [True] * (flood - queued)
        talking, queued = chats, flood
        for pools in asked:
            prompt, answer = int32(rng.integers(0, 99, rng.integers(10, 90))), int(rng.integers(20, 200))
            pooling = RequestPooling("embed") if pools else None
            params = SamplingParams(max_tokens=answer)
            scheduler.add(Request(number, str(number), prompt, params, answer, number, pooling=pooling))
            if pools:
                sizes[number] = len(prompt)
            else:
                arrived[number] = now
            number += 1
        step = scheduler.schedule()
        if step is not None:
            rows = scheduler._rows
            pools = rows.pooled[step.samples]
            drawn, vectors = step.samples[~pools], step.samples[pools]
            made = [RowPooled(int(row), np.zeros(3, np.float32)) for row in vectors]
            ones = np.ones(len(drawn), np.int32)
            outputs.append((step, StepOutput(step.step, drawn, ones, ones, pooled=made)))
        if outputs and (step is None or len(outputs) == depth):
            done, output = outputs.popleft()
            took = step_seconds(done.total_num_scheduled_tokens)
            now += took
            rows = scheduler._rows
            decodes = (done.starts >= rows.num_prompt_tokens[done.rows]) & ~rows.pooled[done.rows]
            if decodes.any():
                served.gaps.append(took)
                begun = rows.pooled & (rows.num_computed_tokens < rows.num_prompt_tokens)
                served.halves = max(served.halves, int((begun & (rows.num_computed_tokens > 0)).sum()))
            result = scheduler.update(output)
            for key in result.keys.tolist():
                if key in arrived:
                    served.waits.append(now - arrived.pop(key))
            for end in result.finished:
                assert end.reason in ("stop", "length")
                served.pooled += sizes.get(end.key, 0)
                talking, queued = talking - (end.key not in sizes), queued - (end.key in sizes)
    served.seconds = now
    scheduler.check_integrity()
    return served


def p95(gaps: list[float]) -> float:
    return float(np.percentile(gaps, 95))


@pytest.mark.parametrize(("policy", "depth"), [(FirstComeFirstServed, 1), (FirstComeFirstServed, 2), (FairShare, 1)])
def test_chats_beside_a_flood_are_hardly_slower_than_alone(depth: int, policy: Any) -> None:
    alone = serve(flood=0, policy=policy(), depth=depth)
    beside = serve(policy=policy(), depth=depth)
    unbounded = serve(policy=policy(), depth=depth, shared=False)
    assert p95(beside.gaps) <= 1.2 * p95(alone.gaps)
    assert p95(unbounded.gaps) > 5 * p95(alone.gaps), "the flood is none"
    # What is free in each step, and the share of its time.
    assert beside.pooled > 0.5 * (FREE - 4 + 0.1 * BASE / EACH) * len(beside.gaps)
    assert beside.halves <= 3
    assert max(beside.waits) <= 2 * max(unbounded.waits)


def test_a_flood_alone_has_all() -> None:
    served = serve(chats=0, steps=100)
    assert served.pooled / served.seconds > 0.9 * BUDGET / linear(BUDGET)


def test_times_that_vary_are_learned() -> None:
    rng = np.random.default_rng(1)

    def varying(num_tokens: int) -> float:
        return linear(num_tokens) * float(rng.uniform(0.9, 1.3))

    alone, beside = serve(flood=0, step_seconds=varying), serve(step_seconds=varying)
    assert p95(beside.gaps) <= 1.2 * p95(alone.gaps)
    assert beside.pooled > len(beside.gaps)


@pytest.mark.parametrize(
    "options", [{"chunked": False}, {"rules": StepRules(chunk_multiple=32)}], ids=["whole prompts", "chunks of 32"]
)
def test_parts_of_prompts_that_are_never_small_wait_until_enough_was_left(options: Any) -> None:
    alone, beside = serve(flood=0, **options), serve(**options)
    assert beside.pooled > 2 * len(beside.gaps)
    assert np.mean(beside.gaps) <= 1.2 * np.mean(alone.gaps)


def test_chats_and_prompts_that_are_not_mixed_take_turns() -> None:
    rules = StepRules(mix_prefill_decode=False)
    beside = serve(rules=rules)
    assert beside.pooled > 0.5 * len(beside.gaps)
    assert len(beside.gaps) > 300


def share_that_knows() -> PooledShare:
    """Of a device whose times are linear()'s."""
    budget = TokenBudget(SchedulerConfig(4, BUDGET), StepRules(), whole=False, max_model_len=LENGTH)
    share = PooledShare(Rows(4, LENGTH), budget)
    for num_tokens in (4, 8, 16, 64, BUDGET):
        learn(share, num_tokens, linear(num_tokens))
    return share


def learn(share: PooledShare, num_tokens: int, seconds: float) -> None:
    """A step with rows that decode and others, while a request that pools asks for room."""
    rows = np.arange(min(num_tokens, 4))
    share._pools_now = True
    share.learn(StepInFlight(0, rows, rows, rows, rows[:0], rows[:0], rows[:0], 0, (), (), 0.0, num_tokens), seconds)


def test_steps_that_only_encode_teach_nothing() -> None:
    """They have no tokens, and may take seconds."""
    share = share_that_knows()
    before = share._extra(4)
    learn(share, 0, 5.0)
    assert share._extra(4) == before


def test_nothing_is_reckoned_while_no_request_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    share = share_that_knows()
    share.begin_step()
    monkeypatch.setattr(share, "_extra", lambda decodes: pytest.fail("for nobody"))
    share._pools_now = False
    rows = np.arange(4)
    share.learn(StepInFlight(0, rows, rows, rows, rows[:0], rows[:0], rows[:0], 0, (), (), 0.0, 4), linear(4))
