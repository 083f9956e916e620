"""Grammars over a vocabulary, by llguidance: a choice or a regular expression compiled to a matcher, which says what
the next token may be.

A client's grammar is not trusted: the text worker compiles it once over single bytes, within its limits, before the
engine compiles it over the model's tokens. llguidance is imported when the first grammar is there.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

FIELD = "structured_outputs"
_WRONG = re.compile(r"regex parse error:\n    (?P<shown>.*)\n    (?P<before> *)\^+\nerror: (?P<reason>.+)")
_ANCHORS = "lookarounds not supported"
_TOO_LARGE = "it is too large or too complex"


def limits() -> LLParserLimits:
    """What one grammar may take: about 40 ms to compile, 5 ms for a mask and 20 MB."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=100_000, step_lexer_fuel=50_000, max_lexer_states=10_000, verbose_errors=False
    )


def compile_grammar(asked: StructuredOutputsParams, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher that has computed its first mask. Raises RequestError for a grammar that is wrong, too large, or allows
    no text."""
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, _grammar(asked), log_level=0, limits=limits())
    if matcher.is_error():
        raise _refusal(asked, _reason(asked.regex or "", matcher.get_error()))
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    for token in tokenizer.eos_tokens:
        allowed &= ~(1 << token)
    if matcher.is_error() and "NoExtension" not in matcher.get_error():
        raise _refusal(asked, _TOO_LARGE)
    if not allowed:
        raise _refusal(asked, "no text is allowed, or only the empty one")
    return matcher


def _grammar(asked: StructuredOutputsParams) -> str:
    """As llguidance reads it. no_forcing: text that must come next may come in any tokens; llguidance would otherwise
    choose them by the model's tokenizer, which runs in the text workers alone."""
    from llguidance import LLMatcher

    options = '%llguidance {"no_forcing": true}\n'
    if asked.regex is None:
        return f"{options}start: {' | '.join(map(json.dumps, asked.choice or ()))}"
    if len(asked.regex) - len(asked.regex.rstrip("\\")) & 1:  # llguidance would leave the last one out
        raise _refusal(asked, f"incomplete escape sequence (at character {len(asked.regex)})")
    grammar = json.loads(LLMatcher.grammar_from_regex(asked.regex))
    for part in grammar["grammars"]:
        part["lark_grammar"] = options + part["lark_grammar"]
    return json.dumps(grammar)


def _refusal(asked: StructuredOutputsParams, reason: str) -> RequestError:
    name = "choice" if asked.regex is None else "regex"
    return RequestError(f"{FIELD}.{name} cannot be used: {reason}.", param=FIELD)


def _reason(regex: str, said: str) -> str:
    """Of what llguidance says of an error: what is wrong, and where."""
    if match := _WRONG.search(said):
        return f"{match['reason']} (at character {_place(regex, match['shown'], len(match['before']))})"
    if _ANCHORS in said:
        return r"^ may only be its beginning and $ its end; \b and \B are not supported"
    return _TOO_LARGE


def _place(regex: str, shown: str, column: int) -> int:
    """The character of the expression, from 1 on, that stands in a column of the error. There, a slash or a line break
    of the expression has a backslash before it."""
    at = 0
    for number, character in enumerate(regex, 1):
        at += 1 if shown.startswith(character, at) else 2
        if at > column:
            return number
    return len(regex)


# ---- vocabularies ---------------------------------------------------------------------------------------------------


class TokenTable:
    """Token bytes as LLTokenizer reads them. special: tokens that are never part of a text. ends: tokens that end one;
    a model without any gets one past its vocabulary, which is never sampled."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: frozenset[int] = frozenset(), ends: tuple[int, ...] = ()) -> None:
        self.ends = list(ends) or [len(tokens)]
        self.tokens = tokens if ends else [*tokens, b"</s>"]
        self.special_token_ids = sorted({*special, *self.ends})
        self.eos_token_id = self.ends[0]

    @classmethod
    def of(cls, vocabulary: Vocabulary, size: int, ends: tuple[int, ...]) -> TokenTable:
        """The tokens as the detokenizer spells them, so that what a grammar allows is what a client reads. size: of the
        model's vocabulary. Raises RequestError for a tokenizer whose tokens do not stand for bytes."""
        if vocabulary.pieces is None:
            raise RequestError(
                f"{FIELD} needs a tokenizer whose tokens stand for bytes of text, unlike this model's; remove it.",
                param=FIELD,
            )
        return cls([vocabulary.token_bytes(token) for token in range(size)], vocabulary.special_ids, ends)

    def tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), eos_token=self.ends)

    def __call__(self, text: str | bytes) -> list[int]:
        """llguidance tokenizes only text that it forces, and it forces none."""
        return []


def byte_tokenizer() -> LLTokenizer:
    """For checking a grammar without a model."""
    return TokenTable([bytes((value,)) for value in range(256)]).tokenizer()
