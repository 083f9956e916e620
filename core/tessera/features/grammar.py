"""The position of one request in its grammar, and the compiled grammar that requests share.

llguidance's matchers of one compiled grammar share a lexer, which makes its states when they are needed, within limits
(text/grammar.py). A lexer that exceeds one is dead, for all matchers that share it (llguidance 1.9: a copy shares it,
and there is no deeper copy in Python). So that no request suffers from another, a request whose lexer died follows its
grammar with a matcher of its own, which takes the request's tokens once more; requests that come later share a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from tessera.arrays import Array
from tessera.platform.feature import Failure, FeatureState
from tessera.text.grammar import is_dead_end, is_lexer_error

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)

DEAD_END = Failure(
    "dead_end",
    "The answer cannot be completed: its grammar demands a text that has no end, or that this model's tokens cannot "
    "spell. Change the schema or the grammar.",
)
TOO_COMPLEX = Failure(
    "too_complex",
    "The answer cannot be completed: its grammar takes more time or memory than the limit. Use simpler patterns, or "
    "lower their limits of length.",
)
MIN_TOKENS = 32
"""A lexer that dies again after fewer tokens shows that the grammar is too complex."""
_REFUEL = 32
"""Tokens between two masks when tokens are taken once more: each mask gives the lexer fuel for what follows."""


class CompiledGrammar:
    """A grammar over the model's tokens. make: compiles it, as a matcher at its start; raises RequestError. submit:
    runs that on the compiler's thread. kind: of StructuredOutputsParams."""

    def __init__(
        self,
        kind: str,
        make: Callable[[], LLMatcher],
        submit: Callable[[Callable[[], LLMatcher]], Future[LLMatcher]],
    ) -> None:
        self._kind = kind
        self._make = make
        self._submit = submit
        self._start: Future[LLMatcher] | None = submit(make)
        self._reported = False

    @property
    def refused(self) -> bool:
        """Whether it could not be compiled."""
        return self._start is not None and self._start.done() and self._start.exception() is not None

    def matcher(self) -> LLMatcher | None:
        """A matcher at the start, which shares its lexer with others; None while it is compiled. Raises
        RequestError."""
        if self._start is None:
            self._start = self._submit(self._make)
        return self._start.result().deep_copy() if self._start.done() else None

    def fresh(self, tokens: list[int]) -> LLMatcher:
        """A matcher with a lexer of its own that has taken these tokens. It may be in error."""
        matcher = self._make()
        for start in range(0, len(tokens), _REFUEL):
            matcher.consume_tokens(tokens[start : start + _REFUEL])
            matcher.compute_bitmask()
        if self._start is not None and self._start.done() and _lexer_died(self._start.result()):
            self._start = None
        return matcher

    def report(self, failure: Failure, num_tokens: int) -> None:
        """Logs that an answer failed; once for each grammar."""
        if not self._reported:
            self._reported = True
            log.warning(
                "a grammar (%s) ended an answer with an error after %d tokens: %s; logged once for each grammar",
                self._kind,
                num_tokens,
                failure.reason,
            )


class GrammarPosition(FeatureState):
    """The position of one request in its grammar. ends: the model's end-of-text tokens. never: tokens to forbid
    although the grammar allows them. These are the end-of-text tokens if the request sets ignore_eos, because they
    would end nothing. plain: whether the grammar alone says what may come next."""

    masks = True
    plain = True
    failure: Failure | None = None

    def __init__(self, compiled: CompiledGrammar, ends: tuple[int, ...], never: tuple[int, ...]) -> None:
        self._compiled = compiled
        self._ends = ends
        self._never = never
        self._without_never = without(never)
        self._tokens: list[int] = []
        self._fresh_at = -MIN_TOKENS
        self._ahead: tuple[list[int], Failure] | None = None
        self.matcher: LLMatcher

    def ready(self) -> bool:
        matcher = self._compiled.matcher()
        if matcher is None:
            return False
        self.matcher = matcher
        return True

    def mask(self, bits: Array) -> None:
        allowed = np.frombuffer(self.matcher.compute_bitmask(), np.int32)
        if self.matcher.is_error():
            allowed = self.retried()
        bits &= allowed[: len(bits)]
        self.forbid(bits)

    def retried(self) -> Array:
        """The mask of a matcher that failed to make it, with another lexer if that was to blame. If there is none, no
        token is allowed, and failure says why. It may have a word more than the vocabulary needs."""
        if not is_dead_end(self.matcher) and self._renew():
            allowed = np.frombuffer(self.matcher.compute_bitmask(), np.int32)
            if not self.matcher.is_error():
                return allowed
        self.failure = DEAD_END if is_dead_end(self.matcher) else TOO_COMPLEX
        self._compiled.report(self.failure, len(self._tokens))
        return np.zeros(len(self.matcher.compute_bitmask()) // 4, np.int32)

    def forbid(self, bits: Array) -> None:
        """Clears the bits of what is never allowed. bits: as in mask()."""
        for word, kept in self._without_never:
            bits[word] &= kept

    def accept(self, token: int) -> bool:
        if not (self._is_end(token) if token in self._ends else self.matcher.consume_token(token)):
            return self._takes_after_all(token)
        self._tokens.append(token)
        return True

    def _is_end(self, token: int) -> bool:
        """An end of text is taken where the grammar may end, or where the grammar itself ends with it. llguidance takes
        it whenever it allows nothing else, as after an error."""
        may_end = self.matcher.is_accepting()
        return self.matcher.consume_token(token) and (may_end or self.matcher.is_accepting())

    def _takes_after_all(self, token: int) -> bool:
        """Whether a token that was not taken is, with another lexer."""
        if is_lexer_error(self.matcher) and self._renew():
            return self.accept(token)
        if self._ahead is not None and self._ahead[0] == self._tokens:
            self.failure = self._ahead[1]
        return False

    def num_allowed(self, drafts: Array) -> int:
        tokens = drafts.tolist()
        allowed = self.matcher.validate_tokens(tokens)
        if self.matcher.is_error():
            allowed = self.matcher.validate_tokens(tokens) if self._renew() else 0
        never = np.flatnonzero(np.isin(drafts[:allowed], self._never))
        return int(never[0]) if len(never) else allowed

    def rollback(self, num_tokens: int) -> None:
        if self.failure is not None:
            self._ahead, self.failure = (self._tokens.copy(), self.failure), None
        del self._tokens[len(self._tokens) - num_tokens :]
        if not self.matcher.rollback(num_tokens):
            self.matcher = self._compiled.fresh(self._tokens)

    def _renew(self) -> bool:
        """Goes on with another lexer. False if this one is new, or the other one dies at once."""
        if len(self._tokens) - self._fresh_at < MIN_TOKENS:
            return False
        self._fresh_at = len(self._tokens)
        self.matcher = self._compiled.fresh(self._tokens)
        return not self.matcher.is_error()

    @property
    def complete(self) -> bool:
        return self.matcher.is_stopped() and self.matcher.is_accepting()


def _lexer_died(start: LLMatcher) -> bool:
    """start: a matcher that is only copied, so that it never is in error itself."""
    copy = start.deep_copy()
    copy.compute_bitmask()
    return copy.is_error()


def bit(token: int) -> np.int32:
    """The bit of a token in its word of a mask."""
    return np.uint32(1 << (token & 31)).view(np.int32)


def without(tokens: Sequence[int]) -> list[tuple[int, np.int32]]:
    """What clears the bits of tokens: the word of each, and what is left of it."""
    return [(token >> 5, ~bit(token)) for token in tokens]
