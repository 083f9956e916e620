"""Silver: what the scheduler does with the cache must not be seen in an answer: blocks taken away and computed again,
blocks that another request filled, blocks that siblings share until they write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tessera.platform.runner import ModelRunner
from tessera.step import SchedulerOutput
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.same_answers import Answers, compare_answers
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny_run import TinyRun, prompts_of

_SIBLINGS = 3
_BLOCKS = 4  # that a request may fill, and that there are


def scheduling_cases(target: Target) -> Iterator[Case]:
    """One each, in the dtype that shows a mistake best."""
    for name, subject, check in (
        ("preemption", "preemption", _preemption), ("prefix", "prefix", _prefix), ("forks", "block copy", _forks),
    ):  # fmt: skip
        yield Case(f"{name}/answers", "silver", subject, partial(check, target))


def _preemption(target: Target) -> Verdict:
    """Three requests that grow in a cache which holds one of them whole."""
    dtype = target.exact_dtype
    with TinyRun(target, dtype) as roomy:
        groups = roomy.started.plan.groups
        longest = _BLOCKS * max(group.block_size for group in groups)
        prompts = prompts_of([longest // 8 + 1, longest // 4, longest // 6 + 3])
        tokens = longest - max(map(len, prompts))
        for prompt in prompts:
            roomy.ask([prompt], tokens)
        undisturbed = Answers.of(roomy)
    blocks = sum(group.block_bytes * (group.blocks_of(longest) + 1) for group in groups)
    with TinyRun(
        target, dtype, max_model_len=longest, kv_cache_memory_bytes=blocks, enable_prefix_caching=False
    ) as tight:
        tight.ask(prompts, tokens)
        if not tight.scheduler.counters.preemptions:
            return absent("its resources never let a second request take blocks that the first one needs")
        compare_answers("after preemption", Answers.of(tight), undisturbed, dtype)
    return PASSED


def _prefix(target: Target) -> Verdict:
    """The second request begins as the first."""
    dtype = target.exact_dtype
    with TinyRun(target, dtype) as run:
        if not run.started.loaded.facts.prefix_cacheable:
            return absent("its caches are not addressed by block")
        size = max(group.block_size for group in run.started.plan.groups)
        shared = prompts_of([2 * size + size // 2])[0]
        asked = [[*shared, *rest] for rest in prompts_of([size + 3, 3, size // 2 + 1], seed=1)]
        for prompt in asked:
            run.ask([prompt], 8)
        found = Answers.of(run)
        hits = [run.cached[key] for key in range(len(asked))]
    if hits[0] or min(hits[1:]) < 2 * size:
        raise ConformanceError(f"prefix of {len(shared)} tokens in blocks of {size}: {hits} were found in the cache")
    with TinyRun(target, dtype, enable_prefix_caching=False) as run:
        for prompt in asked:
            run.ask([prompt], 8)
        compare_answers("after a prefix hit", found, Answers.of(run), dtype)
    return PASSED


def _forks(target: Target) -> Verdict:
    """Siblings share the blocks of their prompt, whose last one each copies before it writes into it."""
    dtype = target.exact_dtype
    temperature = 1.0 if dtype == "float32" else 0.0
    with TinyRun(target, dtype) as run:
        copies = Copies()
        run.executor.observers.append(copies)
        size = max(group.block_size for group in run.started.plan.groups)
        (prompt,) = prompts_of([size + size // 2])
        leader = -1
        for seed in range(_SIBLINGS):
            key = run.add(prompt, size, seed, leader, temperature=temperature)
            leader = key if leader < 0 else leader
        run.finish()
        if not copies.blocks:
            return absent("siblings share no block that is written into")
        found = Answers.of(run)
    with TinyRun(target, dtype, enable_prefix_caching=False) as run:
        for seed in range(_SIBLINGS):
            run.add(prompt, size, seed, temperature=temperature)
            run.finish()
        compare_answers(f"block copy, of {copies.blocks} blocks that siblings share", found, Answers.of(run), dtype)
    return PASSED


class Copies:
    """An observer of steps. blocks: that they copied."""

    def __init__(self) -> None:
        self.blocks = 0

    def around(self, runner: ModelRunner, step: SchedulerOutput | None) -> AbstractContextManager[None]:
        if step is not None:
            self.blocks += sum(len(copy.sources) for copy in step.copies)
        return nullcontext()
