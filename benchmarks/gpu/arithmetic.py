"""What the times of steps and kernels say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """at: seconds, when its tokens were there. keys: the requests that got one, once per token."""

    at: float
    keys: list[int]


class Rates(NamedTuple):
    """first: seconds until every request had its first token. decode: tokens per second from then until the first
    request had all its tokens, while all were running; 0 if that moment never was. whole: tokens per second of the
    run."""

    first: float
    decode: float
    whole: float


def rates(began: float, steps: Sequence[Step], lengths: Sequence[int]) -> Rates:
    """lengths: tokens of each request's answer; keys are places in it."""
    had: Counter[int] = Counter()
    first = last = None
    decoded = 0
    for step in steps:
        full = len(had) == len(lengths)
        had.update(step.keys)
        if full and last is None:
            decoded += len(step.keys)
        if first is None and len(had) == len(lengths):
            first = step.at
        if last is None and any(had[key] == lengths[key] for key in step.keys):
            last = step.at
    assert first is not None, "each request has a token in the end"
    assert last is not None, "and one is the first to end"
    decode = decoded / (last - first) if decoded and last > first else 0.0
    return Rates(first - began, decode, sum(lengths) / (steps[-1].at - began))


def rate_between(steps: Sequence[Step], length: int, first: int, last: int) -> float:
    """Tokens per second between the steps in which the `first`-th and the `last`-th request had all their `length`
    tokens. Raises ValueError if both are the same step."""
    had: Counter[int] = Counter()
    ended = tokens = 0
    began = None
    for step in steps:
        had.update(step.keys)
        ended += sum(had[key] == length for key in set(step.keys))
        if began is not None:
            tokens += len(step.keys)
            if ended >= last:
                return tokens / (step.at - began)
        elif ended >= last:
            break
        elif ended >= first:
            began = step.at
    raise ValueError(f"no time passed between the ends of requests {first} and {last}")


def merged(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def busy_share(intervals: Sequence[tuple[float, float]]) -> float:
    """The part of the time between the first start and the last end in which something ran."""
    if not intervals:
        return 0.0
    return merged(intervals) / (max(end for _, end in intervals) - min(start for start, _ in intervals))


def many_lengths(requests: int, shortest: int = 100, longest: int = 1024) -> tuple[list[int], list[int]]:
    """Tokens of the prompts and of the answers, uniform, as nano-vllm's bench.py draws them: for each request of
    Random(0), one call for its length, and the tokens before the answers' lengths."""
    draw = random.Random(0)
    prompts = []
    for _ in range(requests):
        prompts.append(draw.randint(shortest, longest))
        for _ in range(prompts[-1]):
            draw.randint(0, 10_000)
    return prompts, [draw.randint(shortest, longest) for _ in range(requests)]
