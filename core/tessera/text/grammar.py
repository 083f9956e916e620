"""Grammars over a vocabulary, by llguidance: what a request asks of its answer, compiled to a matcher, which says what
the next token may be.

A client's grammar is not trusted: the text worker compiles it once over single bytes, within its limits, before the
engine compiles it over the model's tokens. llguidance is imported when the first grammar is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text import quoted_grammar
from tessera.text.costly_patterns import check_patterns
from tessera.text.json_schema import (
    MAX_REASON_CHARS,
    TOO_COMPLEX,
    WHITESPACE,
    Rules,
    SchemaError,
    compiled,
    explained,
    slashed,
)
from tessera.text.quoted_grammar import NotQuotable
from tessera.text.structural_tag import Builder, TagError
from tessera.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

FIELD = "structured_outputs"
# Text that must come next may come in any tokens; llguidance would otherwise choose them by the model's tokenizer,
# which runs in the text workers alone. It stands after a client's own grammar, whose options cannot change it.
_OPTIONS = '%llguidance {"no_forcing": true}'
_OF_JSON = '%llguidance {"no_forcing": true, "ignore_once": true}'
_NO_SPACE: Mapping[str, Any] = MappingProxyType({"whitespace_flexible": False})
_WRONG = re.compile(r"regex parse error:\n    (?P<shown>.*)\n    (?P<before> *)\^+\nerror: (?P<reason>.+)")
_WRONG_GRAMMAR = re.compile(r"^(?:at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<reason>.+)")
_AT = re.compile(r" at line (?P<line>\d+), .*", re.DOTALL)
_ANCHORS = "lookarounds not supported"
_NO_TEXT = "no text is allowed, or only the empty one"
_PROBED = 4  # bytes of a text that is tried
_LETTERS = b"a0A Z_-.:/@"
_DEAD_END, _LEXER_ERROR = "NoExtension", "lexer error"
NONE: Mapping[str, int] = MappingProxyType({})


def limits() -> LLParserLimits:
    """What one grammar may take: about 40 ms to compile, 13 ms for a mask and 50 MB."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000, step_lexer_fuel=500_000, max_lexer_states=25_000, verbose_errors=False
    )


def compile_grammar(
    asked: StructuredOutputsParams, tokenizer: LLTokenizer, special: Mapping[str, int] = NONE
) -> LLMatcher:
    """A matcher that has computed its first mask. special: the tokenizer's special tokens, by their text. Raises
    RequestError for a grammar that is wrong, too large, or allows no text."""
    grammar = Grammar(asked, tokenizer)
    matcher = grammar.matcher(special)
    said = matcher.get_error()
    if said:
        raise grammar.refusal(said)
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    for token in tokenizer.eos_tokens:
        allowed &= ~(1 << token)
    if matcher.is_error() and not is_dead_end(matcher):
        raise grammar.refusal(TOO_COMPLEX)
    if not allowed:
        raise grammar.refusal(_NO_TEXT)
    if asked.structural_tag is not None:
        grammar.check_parts()
    return matcher


def is_dead_end(matcher: LLMatcher) -> bool:
    """Whether a matcher is in error because no token may follow, nor an end of text."""
    return _DEAD_END in matcher.get_error()


def is_lexer_error(matcher: LLMatcher) -> bool:
    """Whether a matcher is in error because its lexer, which its copies share, exceeded a limit."""
    return _LEXER_ERROR in matcher.get_error()


class Part(NamedTuple):
    """A grammar within the grammar. place: where the client gave it. definition: llguidance's. named: further ones,
    which it mentions by their names."""

    kind: str
    place: str
    given: Any
    definition: dict[str, Any]
    named: tuple[dict[str, Any], ...] = ()

    def definitions(self, name: str) -> list[dict[str, Any]]:
        return [{"name": name, **self.definition}, *self.named]


class Grammar:
    """What one request asked for, in llguidance's terms: a grammar in Lark's syntax, and the parts that it names."""

    def __init__(self, asked: StructuredOutputsParams, tokenizer: LLTokenizer) -> None:
        self._asked = asked
        self._tokenizer = tokenizer
        self._parts: list[Part] = []
        self._bytes: LLTokenizer | None = None

    def matcher(self, special: Mapping[str, int]) -> LLMatcher:
        """Raises RequestError for what is wrong before llguidance sees it."""
        start = self._start(special)
        parts = [each for number, part in enumerate(self._parts) for each in part.definitions(f"g{number}")]
        return self._made([{"name": "start", "lark_grammar": f"{start}\n{_OPTIONS}"}, *parts])

    def refusal(self, said: str) -> RequestError:
        """The error to raise for what llguidance says of the grammar. Parts are tried alone, to name the wrong one."""
        for part in self._parts:
            alone = self._alone(part)
            if alone.is_error():
                return self._explained(part, alone.get_error())
        place = self._parts[0].place if len(self._parts) == 1 else f".{self._asked.kind}"
        return _refusal(place, said if said in (TOO_COMPLEX, _NO_TEXT) else TOO_COMPLEX)

    def check_parts(self) -> None:
        """Raises RequestError for a part of a structural tag that allows no text: an answer that began it could not go
        on. Those of schemas are found before (text/json_schema)."""
        for part in self._parts:
            if part.kind != "json_schema":
                alone = _over_bytes({"lark_grammar": f"start: @part\n{_OPTIONS}"}, *part.definitions("part"))
                alone.compute_bitmask()
                if is_dead_end(alone):
                    raise _refusal(part.place, "no text is allowed")

    def _start(self, special: Mapping[str, int]) -> str:
        asked = self._asked
        if asked.choice is not None:
            return f"start: {' | '.join(map(json.dumps, asked.choice))}"
        if asked.regex is not None:
            return f"start: {self.regex(asked.regex, '.regex')}"
        if asked.grammar is not None:
            return f"start: {self.grammar(asked.grammar, '.grammar')}"
        if asked.json is not None:
            return f"start: {self.json_schema(json.loads(asked.json), '.json')}"
        if asked.json_object:
            return f"start: {self.json_schema({'type': 'object'}, '.json_object')}"
        try:
            return Builder(self, special).build(json.loads(asked.structural_tag))
        except TagError as error:
            raise _refusal(f".structural_tag{error.place}", error.reason) from None

    def _alone(self, part: Part) -> LLMatcher:
        """The grammar of one part, whose names are those that it has within the whole."""
        return self._made([{"lark_grammar": f"start: @part\n{_OPTIONS}"}, *part.definitions("part")])

    def _made(self, grammars: list[dict[str, Any]]) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(self._tokenizer, json.dumps({"grammars": grammars}), log_level=0, limits=limits())

    # ---- parts: each returns the name by which the grammar mentions it

    def json_schema(self, given: Any, place: str, *, strict: bool | None = None, lenient: bool = False) -> str:
        """A JSON text that is valid by this schema. strict, lenient: as text/json_schema has them. Raises
        RequestError."""
        asked = self._asked
        whitespace = None if asked.disable_any_whitespace else asked.whitespace_pattern or WHITESPACE
        rules = Rules(
            closed=asked.disable_additional_properties is not False,
            strict=asked.strict if strict is None else strict,
            lenient=lenient,
        )
        try:
            lark, embedded = compiled(given, f"g{len(self._parts)}s", rules, self._of_bytes)
            check_patterns(given, _exhausts)
        except SchemaError as error:
            raise _refusal(f"{place}{error.place}", error.reason) from None
        options = _OPTIONS if whitespace is None else f"{_OF_JSON}\n%ignore /{slashed(whitespace)}/"
        within = _NO_SPACE if whitespace is None else {"whitespace_pattern": whitespace}
        named = (
            {"name": name, "json_schema": {**schema, "x-guidance": dict(_NO_SPACE if initial else within)}}
            for name, (schema, initial) in embedded.items()
        )
        return self._named(Part("json_schema", place, given, {"lark_grammar": f"{lark}\n{options}"}, tuple(named)))

    def regex(self, given: str, place: str, *, quoted: bool = False) -> str:
        """A text that a regular expression matches as a whole. quoted: as a JSON string writes it. Raises
        RequestError."""
        from llguidance import LLMatcher

        if len(given) - len(given.rstrip("\\")) & 1:  # llguidance would leave the last one out
            raise _refusal(place, f"incomplete escape sequence (at character {len(given)})")
        (made,) = json.loads(LLMatcher.grammar_from_regex(given))["grammars"]
        return self._named(self._of_lark("regex", place, given, made["lark_grammar"], quoted=quoted))

    def grammar(self, given: str, place: str, *, quoted: bool = False) -> str:
        """A text of a grammar in Lark's or GBNF's syntax. quoted: as a JSON string writes it. Raises RequestError."""
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            lark = any_to_lark(given)
        except RecursionError:
            raise _refusal(place, "it is nested too deeply") from None
        except Exception as error:  # noqa: BLE001 - llguidance raises no other
            reason = _AT.sub(r" (at line \g<line>)", str(error))[:MAX_REASON_CHARS]
            raise _refusal(place, f"{reason[:1].lower()}{reason[1:]}") from None
        return self._named(self._of_lark("grammar", place, given, lark, quoted=quoted))

    def _of_lark(self, kind: str, place: str, given: str, lark: str, *, quoted: bool) -> Part:
        if quoted:
            plain = Part(kind, place, given, {"lark_grammar": f"{lark}\n{_OPTIONS}"})
            alone = self._alone(plain)
            if alone.is_error():  # said of what the client gave, before it is changed
                raise self._explained(plain, alone.get_error())
            try:
                lark = quoted_grammar.quoted(lark, self._bytes_of)
            except NotQuotable as error:
                raise _refusal(place, str(error)) from None
        return Part(kind, place, given, {"lark_grammar": f"{lark}\n{_OPTIONS}"})

    def _bytes_of(self, one: str) -> frozenset[int]:
        """The single bytes that a class of a regular expression matches; none if it is wrong, which is said later."""
        matcher = _over_bytes({"lark_grammar": f"start: /{one}/\n{_OPTIONS}"})
        bits = b"" if matcher.is_error() else matcher.compute_bitmask()
        return frozenset(byte for byte in range(min(256, 8 * len(bits))) if bits[byte >> 3] >> (byte & 7) & 1)

    def _named(self, part: Part) -> str:
        self._parts.append(part)
        return f"@g{len(self._parts) - 1}"

    def _explained(self, part: Part, said: str) -> RequestError:
        match part.kind:
            case "json_schema":
                error = explained(part.given, self._of_bytes)
                return _refusal(f"{part.place}{error.place}", error.reason)
            case "regex":
                return _refusal(part.place, _reason(part.given, said))
        return _refusal(part.place, _reason_of_grammar(said))

    def _of_bytes(self, grammar: dict[str, Any]) -> LLMatcher:
        """A matcher over single bytes."""
        from llguidance import LLMatcher

        if self._bytes is None:
            self._bytes = byte_tokenizer()
        return LLMatcher(self._bytes, json.dumps({"grammars": [grammar]}), log_level=0, limits=limits())


def _exhausts(schema: Any, begun: bytes) -> bool:
    """Whether a text by a schema that begins so exceeds a limit within its next bytes."""
    matcher = _over_bytes({"json_schema": schema})
    if not matcher.consume_tokens(list(begun)):
        return False
    for _ in range(_PROBED):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        letters = [byte for byte in _LETTERS if bits >> byte & 1]
        if matcher.is_error() or not letters:
            break
        matcher.consume_token(letters[0])
    return is_lexer_error(matcher)


def _over_bytes(*grammars: dict[str, Any]) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(byte_tokenizer(), json.dumps({"grammars": grammars}), log_level=0, limits=limits())


def _refusal(place: str, reason: str) -> RequestError:
    """place: below the field, as `.json.properties.name`."""
    return RequestError(f"{FIELD}{place} cannot be used: {reason}.", param=f"{FIELD}{place}")


def _reason(regex: str, said: str) -> str:
    """Of what llguidance says of a regular expression: what is wrong, and where."""
    if match := _WRONG.search(said):
        return f"{match['reason']} (at character {_place(regex, match['shown'], len(match['before']))})"
    if _ANCHORS in said:
        return r"^ may only be its beginning and $ its end; \b and \B are not supported"
    return TOO_COMPLEX


def _place(regex: str, shown: str, column: int) -> int:
    """The character of the expression, from 1 on, that stands in a column of the error. There, a slash or a line break
    of the expression has a backslash before it."""
    at = 0
    for number, character in enumerate(regex, 1):
        at += 1 if shown.startswith(character, at) else 2
        if at > column:
            return number
    return len(regex)


def _reason_of_grammar(said: str) -> str:
    """Of what llguidance says of a grammar in Lark's syntax: what is wrong, and where."""
    match = _WRONG_GRAMMAR.match(said)
    if match is None:
        first = said.partition("\n")[0]
        return first if first and "NoExtension" not in first and "oo complex" not in first else TOO_COMPLEX
    reason = match["reason"][:MAX_REASON_CHARS].rstrip(".:")
    if reason.startswith("unknown special token"):
        reason = "special tokens are not supported in a grammar"
    return f"{reason[:1].lower()}{reason[1:]} (at line {match['line']}, column {match['column']})"


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

    @property
    def special(self) -> Mapping[str, int]:
        """The special tokens, by their text."""
        return {self.tokens[token].decode(errors="replace"): token for token in self.special_token_ids}

    def tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), eos_token=self.ends)

    def __call__(self, text: str | bytes) -> list[int]:
        """llguidance tokenizes only text that it forces, and it forces none."""
        return []


def byte_tokenizer() -> LLTokenizer:
    """For checking a grammar without a model."""
    return TokenTable([bytes((value,)) for value in range(256)]).tokenizer()
