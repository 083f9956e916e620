"""What a request's fields leave to draw: allowed_token_ids, bad_words and min_tokens may together forbid every token.

Where all logits are -inf, the sampler draws the first token of the vocabulary (SampleSpec: of equal ones, the first
counts). So nothing was allowed where that token is drawn and a field forbids it; no other token has to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.arrays import Array
from tessera.errors import RequestError
from tessera.sampling_params import SamplingParams

FIRST = 0
"""The token that is drawn where none is allowed."""


@dataclass(frozen=True)
class Restrictions:
    """When a request's fields forbid FIRST."""

    # The request's fields that forbid tokens.
    fields: tuple[str, ...]
    # They forbid it anywhere.
    always: bool
    # Until the answer has this many tokens, because FIRST would end it.
    before: int
    # Where the answer ends in one of these token ids.
    after: tuple[tuple[int, ...], ...]

    @classmethod
    def from_params(cls, params: SamplingParams, eos: Sequence[int]) -> Restrictions | None:
        """None if nothing can forbid it. eos: the model's end-of-text tokens."""
        words = [tuple(word[:-1]) for word in params.bad_words_ids or () if word[-1] == FIRST]
        allowed = params.allowed_token_ids
        always = () in words or (allowed is not None and FIRST not in allowed)
        before = params.min_tokens if FIRST in _ends(params, eos) else 0
        after = tuple(word for word in words if word)
        if not (always or before or after):
            return None
        return cls(_fields(params), always, before, after)

    def forbid(self, answer: Array) -> bool:
        """Whether they forbid FIRST after these tokens of the answer."""
        if self.always or len(answer) < self.before:
            return True
        return any(tuple(answer[-len(word) :].tolist()) == word for word in self.after)

    def error(self) -> RequestError:
        return _nothing_allowed(self.fields)


def check_first(params: SamplingParams, eos: Sequence[int], vocab_size: int) -> None:
    """Raises RequestError if an answer's first token already cannot be drawn. eos: the model's end-of-text tokens."""
    forbidden = {word[0] for word in params.bad_words_ids or () if len(word) == 1}.union(_ends(params, eos))
    allowed = params.allowed_token_ids
    if allowed is None:
        nothing = len(forbidden) >= vocab_size and forbidden.issuperset(range(vocab_size))
    else:
        nothing = len(forbidden) > 0 and forbidden.issuperset(allowed)
    if nothing:
        raise _nothing_allowed(_fields(params))


def _ends(params: SamplingParams, eos: Sequence[int]) -> Sequence[int]:
    """The tokens that min_tokens forbids."""
    return (*eos, *(params.stop_token_ids or ())) if params.min_tokens else ()


def _fields(params: SamplingParams) -> tuple[str, ...]:
    """Those that forbid tokens."""
    asked = {
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": bool(params.bad_words_ids),
        "min_tokens": params.min_tokens > 0,
        "structured_outputs": params.structured_outputs is not None,
    }
    return tuple(name for name, given in asked.items() if given)


def _nothing_allowed(fields: Sequence[str]) -> RequestError:
    named = " and ".join(filter(None, (", ".join(fields[:-1]), fields[-1])))
    together = " together" if len(fields) > 1 else ""
    return RequestError(
        f"No token is left to draw by {named}{together}; change what they ask for.",
        param=fields[0],
        code="nothing_allowed",
    )
