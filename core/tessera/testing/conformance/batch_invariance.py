"""Batch invariance: where the platform promises it, a request has the bits that it has alone, whatever else is in its
steps and however they split it (silver)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tessera.errors import PlatformError, RefusedError
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.drafts import KnownAnswers, Longest
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import VOCAB, TinyAnswers, TinyRun, prompts_of

_LENGTHS = (1, 33, 7, 140, 16, 50, 3, 90, 21)  # of prompts
_TOKENS = 14
_POSITIONS = 256
_BLOCKS = 13  # for nine requests, of which the longest fills five of 32 tokens
_MAX_DRAFTS = 3  # drafts
_HEADS: Mapping[str, Any] = {"head_dim": 32}  # a size that kernels have
_SAMPLINGS: Sequence[Mapping[str, Any]] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.0, "logit_bias": {5: 1.5, 8: -2.0}},
    {"temperature": 0.7, "allowed_token_ids": list(range(3, VOCAB, 2)), "frequency_penalty": 0.5},
)
"""Rows that ask for nothing are sampled on another path if others have their logits edited or filtered."""


def invariance_cases(target: Target) -> Iterator[Case]:
    promise = _Promise(target)
    for name, check in (
        ("batch", _batch), ("chunks", _chunks), ("prefix", _prefix), ("preemption", _preemption), ("drafts", _drafts),
    ):  # fmt: skip
        yield Case(f"batch-invariant/{name}", "silver", "batch invariance", partial(promise.verdict, check))


@dataclass
class _Promise:
    target: Target

    def verdict(self, check: Callable[[_Promise], TinyAnswers]) -> Verdict:
        if self.refusal:
            return absent(self.refusal)
        found, expected = check(self), self.alone
        for number, length in enumerate(_LENGTHS):
            for what, mine, theirs in (
                ("tokens", found.answers[number], expected.answers[number]),
                ("log probabilities", found.logprobs[number], expected.logprobs[number]),
            ):
                if mine != theirs:
                    pairs = enumerate(zip(mine, theirs, strict=False))
                    place = next((i for i, (one, other) in pairs if one != other), min(len(mine), len(theirs)))
                    raise ConformanceError(
                        f"batch invariance: request {number}, a prompt of {length} tokens, has other {what} than "
                        f"alone, from token {place + 1} of its answer on"
                    )
        return PASSED

    @cached_property
    def _promised(self) -> tuple[str, str]:
        """The first dtype that the platform promises; or "", and the reason why it promises none."""
        reasons = []
        for dtype in self.target.platform.capabilities.dtypes:
            try:
                self._start(dtype).close()
            except RefusedError as refused:
                reasons.append(refused.message)
            else:
                return dtype, ""
        return "", reasons[0]

    @property
    def refusal(self) -> str:
        return self._promised[1]

    @cached_property
    def alone(self) -> TinyAnswers:
        """The answers to each request on its own."""
        with self.run(enable_prefix_caching=False) as run:
            for number in range(len(_LENGTHS)):
                self.add(run, number)
                run.finish()
            return TinyAnswers.from_run(run)

    def run(self, **flags: Any) -> TinyRun:
        return self._start(self._promised[0], **flags)

    def _start(self, dtype: str, **flags: Any) -> TinyRun:
        flags = {"max_num_batched_tokens": 512, "max_num_seqs": 16, **flags}
        return TinyRun(
            self.target, dtype, positions=_POSITIONS, sizes=_HEADS, logprobs=0, batch_invariant=True, **flags
        )

    def add(self, run: TinyRun, number: int) -> None:
        (prompt,) = prompts_of([_LENGTHS[number]], seed=number)
        run.add(prompt, _TOKENS, number, **_SAMPLINGS[number % len(_SAMPLINGS)])

    def together(self, run: TinyRun) -> TinyAnswers:
        """The answers to all requests, in one batch."""
        first = len(run.answers)
        for number in range(len(_LENGTHS)):
            self.add(run, number)
        run.finish()
        return TinyAnswers.from_run(run, first)


def _batch(promise: _Promise) -> TinyAnswers:
    with promise.run(enable_prefix_caching=False) as run:
        return promise.together(run)


def _chunks(promise: _Promise) -> TinyAnswers:
    with promise.run(max_num_batched_tokens=24, max_num_seqs=5, enable_prefix_caching=False) as run:
        return promise.together(run)


def _prefix(promise: _Promise) -> TinyAnswers:
    """The second time, the blocks of prompts are found in the cache."""
    with promise.run(max_num_batched_tokens=64) as run:
        promise.together(run)
        return promise.together(run)


def _preemption(promise: _Promise) -> TinyAnswers:
    """In a cache that does not hold all requests."""
    with promise.run() as run:
        needed = sum(group.block_bytes for group in run.started.plan.groups)
    with promise.run(kv_cache_memory_bytes=_BLOCKS * needed, enable_prefix_caching=False) as run:
        return promise.together(run)


def _drafts(promise: _Promise) -> TinyAnswers:
    """A step verifies drafts; most of them are right."""
    config = {"method": "ngram", "num_speculative_tokens": _MAX_DRAFTS}
    try:
        run = promise.run(speculative_config=config, enable_prefix_caching=False)
    except PlatformError:
        return promise.alone  # the platform's own runner does not verify drafts
    with run:
        speculation = run.scheduler.speculation
        assert speculation is not None
        prompts = [prompts_of([length], seed=number)[0] for number, length in enumerate(_LENGTHS)]
        whole = [[*prompt, *answer] for prompt, answer in zip(prompts, promise.alone.answers, strict=True)]
        speculation.proposer, speculation.lengths = KnownAnswers(whole, VOCAB), Longest(len(prompts) * 8, _MAX_DRAFTS)
        return promise.together(run)
