"""Steps that make a runner launch each kind of kernel that requests can cause, for platforms whose kernels are compiled
when they are first launched: a kernel that is compiled while requests are served holds up all of them.

What kernels are compiled for depends on the number of tokens in a launch and of a row (powers of two stand for those
up to the next), on whether rows that decode lie beside a prompt and have long contexts, and on how tokens are
sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from tessera.arrays import int32
from tessera.config import EngineConfig
from tessera.platform.launch import StepRules
from tessera.platform.runner import CachePlan
from tessera.pooling_params import RequestPooling
from tessera.runner.workspace import null_step
from tessera.sampling_params import SamplingParams
from tessera.step import SchedulerOutput

_MOST_LOGPROBS = 32
"""Alternatives beyond which warm-up tries no more numbers."""


def steps_of_all_kinds(
    config: EngineConfig, plan: CachePlan, rules: StepRules, vocab: int, pooling: Sequence[RequestPooling]
) -> list[SchedulerOutput]:
    """plan: of the caches, of which only null blocks are written. vocab: of the model. pooling: of each task that it
    has."""
    longest, most = plan.max_model_len - 1, config.scheduler.max_num_batched_tokens
    each, plain = min(longest, most, rules.max_tokens_per_request or longest), SamplingParams(temperature=0.0)
    pooled = [
        null_step(plan, number, int32([0]), int32([count]), plain, pooling=task)
        for number, (task, count) in enumerate(product(pooling, _doubling(each)))
    ]
    if not config.model.generates:
        return pooled
    kinds = [([0], [count], plain) for count in _doubling(each)]
    if rules.mix_prefill_decode and plan.num_rows > 1 and each > 2:
        kinds += [([longest - 1, 0], [1, count], plain) for count in (2, each - 1)]
    kinds += [([longest - 1], [1], params) for params in _sampling(config, vocab)]
    # Otherwise the last layer, which may be the only one of its kind, computes sampled rows alone. Here it has one row
    # more than there are tokens.
    kinds += [([0], [count], SamplingParams(temperature=0.0, prompt_logprobs=0)) for count in _doubling(each)]
    return pooled + [
        null_step(plan, number, int32(starts), int32(counts), params)
        for number, (starts, counts, params) in enumerate(kinds)
    ]


def _sampling(config: EngineConfig, vocab: int) -> Iterator[SamplingParams]:
    greedy: dict[str, Any] = {"temperature": 0.0}
    draws: dict[str, Any] = {"temperature": 1.0}
    edits: dict[str, Any] = {"repetition_penalty": 1.1, "logit_bias": {0: 1.0}, "allowed_token_ids": [0]}
    for temperature_and_filters in (greedy, draws, {**draws, "top_k": 1, "top_p": 0.5}):
        yield SamplingParams(**temperature_and_filters)
        yield SamplingParams(**temperature_and_filters, **edits)
    yield SamplingParams(**greedy, allowed_token_ids=[0])
    yield SamplingParams(**greedy, **edits, logprobs=1, logprob_token_ids=[0])
    limit = config.model.max_logprobs
    for number in (0, *_doubling(min(vocab if limit == -1 else limit, vocab, _MOST_LOGPROBS))):
        yield SamplingParams(**greedy, logprobs=number)


def _doubling(last: int) -> list[int]:
    """1, 2, 4 and so on, and the last."""
    return [1 << power for power in range((last - 1).bit_length()) if last > 1] + [last] * (last > 0)
