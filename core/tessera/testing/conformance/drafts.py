"""Speculative decoding: a launch that verifies drafts draws what decode steps would draw one by one (silver)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from tessera.arrays import Array, int32
from tessera.errors import PlatformError
from tessera.scheduler.speculation import DraftLengths
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import VOCAB, TinyAnswers, TinyRun, compare_answers, prompts_of

_PROMPTS = (3, 17, 40, 1, 26)  # lengths
_TOKENS, _MAX_DRAFTS = 40, 3
_WRONG = 4  # each fourth draft is


def draft_cases(target: Target) -> Iterator[Case]:
    yield Case("drafts/answers", "silver", "drafts", partial(_answers, target))


def _answers(target: Target) -> Verdict:
    """The drafts are the answers that the requests have without any, but for some that are wrong."""
    dtype, prompts = target.exact_dtype, prompts_of(_PROMPTS, seed=7)
    temperature = 1.0 if dtype == "float32" else 0.0
    with TinyRun(target, dtype, logprobs=0) as plain:
        plain.ask(prompts, _TOKENS, temperature=temperature)
        expected = TinyAnswers.from_run(plain)
    config = {"method": "ngram", "num_speculative_tokens": _MAX_DRAFTS}
    try:
        run = TinyRun(target, dtype, speculative_config=config, logprobs=0)
    except PlatformError as refused:
        return absent(refused.message)
    with run:
        speculation = run.scheduler.speculation
        assert speculation is not None
        whole = [[*prompt, *answer] for prompt, answer in zip(prompts, expected.answers, strict=True)]
        speculation.proposer, speculation.lengths = KnownAnswers(whole, VOCAB), Uneven(len(prompts) * 8, _MAX_DRAFTS)
        run.ask(prompts, _TOKENS, temperature=temperature)
        counters = run.scheduler.counters
        compare_answers("with drafts", TinyAnswers.from_run(run), expected, dtype)
        if not counters.accepted_tokens:
            raise ConformanceError(f"drafts: none of {counters.draft_tokens} drafts was accepted, most of them right")
    return PASSED


class KnownAnswers:
    """Proposes what follows in `whole`, prompts and answers together; some of it wrong. vocab: size of the
    vocabulary."""

    def __init__(self, whole: Sequence[Sequence[int]], vocab: int) -> None:
        self.whole, self.vocab = [list(one) for one in whole], vocab

    def propose(self, row: int, tokens: Array, max_drafts: int) -> Array:
        known = tokens.tolist()
        found = next((one for one in self.whole if one[: len(known)] == known), known)
        ahead = int32(found[len(known) : len(known) + max_drafts])
        wrong = (len(known) + np.arange(len(ahead))) % _WRONG == 0
        return int32(np.where(wrong, (ahead + 1) % self.vocab, ahead))


class Longest(DraftLengths):
    """As many drafts as a row may have, in each step."""

    def suspended(self, num_tokens: int) -> bool:
        return False

    def looked(self, seconds: float, num_tokens: int, *, waited: bool) -> None:
        pass

    def choose(self, rows: Array, limits: Array, num_tokens: int) -> Array:
        return np.maximum(limits, 0).astype(np.int32)


class Uneven(Longest):
    """As many drafts as the first row may have, one fewer in the next, and so on down to none: rows of a launch differ
    in length."""

    def choose(self, rows: Array, limits: Array, num_tokens: int) -> Array:
        return np.minimum(super().choose(rows, limits, num_tokens), self.max_drafts - rows % (self.max_drafts + 1))
