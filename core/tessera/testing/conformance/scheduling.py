"""Silver: what the scheduler does with the cache must not be seen in an answer: blocks taken away and computed again,
blocks that another request filled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.same_answers import Answers, compare_answers
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny_run import TinyRun, prompts_of

_BLOCKS = 4  # that a request may fill, and that there are


def scheduling_cases(target: Target) -> Iterator[Case]:
    """One each, in the dtype that shows a mistake best."""
    for name, check in (("preemption", _preemption), ("prefix", _prefix)):
        yield Case(f"{name}/answers", "silver", name, partial(check, target))


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
