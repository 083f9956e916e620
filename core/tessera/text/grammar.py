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
from tessera.sampling_params import GrammarSource, StructuredOutputsParams
from tessera.text import quoted_grammar
from tessera.text.costly_patterns import check_patterns
from tessera.text.grammar_errors import lark_reason, regex_reason
from tessera.text.json_schema import (
    MAX_REASON_CHARS,
    TOO_COMPLEX,
    WHITESPACE,
    Rules,
    SchemaError,
    compile_schema,
    escape_slashes,
    explain_refusal,
)
from tessera.text.lark_dead_ends import endless_rule
from tessera.text.lark_depth import MAX_DEPTH, is_too_deep
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
_AT = re.compile(r" at line (?P<line>\d+), .*", re.DOTALL)
_NO_TEXT = "no text is allowed, or only the empty one"
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep, by what its parts refer to"
_NOTES = frozenset(("title", "description", "default", "examples", "$comment"))
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
    params: StructuredOutputsParams, tokenizer: LLTokenizer, special: Mapping[str, int] = NONE
) -> LLMatcher:
    """A matcher that has computed its first mask. special: the tokenizer's special tokens, by their text. Raises
    RequestError for a grammar that is wrong, too large, or allows no text."""
    return Grammar(params, tokenizer).compile(special)


def compile_source(source: GrammarSource, tokenizer: LLTokenizer) -> LLMatcher:
    """The same of a grammar that was checked and translated before. Raises RequestError for one that takes too much
    with this vocabulary, or allows no text that it can spell."""
    matcher = _matcher(tokenizer, source.grammars)
    error = TOO_COMPLEX if matcher.is_error() else _first_mask_error(matcher, tokenizer)
    if error:
        raise _refusal(source.place, error)
    return matcher


def _first_mask_error(matcher: LLMatcher, tokenizer: LLTokenizer) -> str:
    """Why no answer can begin; "" if one can."""
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    for token in tokenizer.eos_tokens:
        allowed &= ~(1 << token)
    if matcher.is_error() and not is_dead_end(matcher):
        return TOO_COMPLEX
    return "" if allowed else _NO_TEXT


def is_dead_end(matcher: LLMatcher) -> bool:
    """Whether a matcher is in error because no token may follow, nor an end of text."""
    return _DEAD_END in matcher.get_error()


def is_lexer_error(matcher: LLMatcher) -> bool:
    """Whether a matcher is in error because its lexer, which its copies share, exceeded a limit."""
    return _LEXER_ERROR in matcher.get_error()


class GrammarPart(NamedTuple):
    """A grammar within the grammar."""

    # json_schema, regex or grammar.
    kind: str
    # Where the client wrote it, below the field.
    place: str
    # What the client wrote.
    content: Any
    # As llguidance has it.
    definition: dict[str, Any]
    # Further grammars, which the definition mentions by their names.
    embedded: tuple[dict[str, Any], ...] = ()

    def definitions(self, name: str) -> list[dict[str, Any]]:
        return [{"name": name, **self.definition}, *self.embedded]


class Grammar:
    """What one request asks for, in llguidance's terms: a grammar in Lark's syntax, and the parts that it names."""

    def __init__(self, params: StructuredOutputsParams, tokenizer: LLTokenizer) -> None:
        self.params = params
        self._tokenizer = tokenizer
        self._parts: dict[str, GrammarPart] = {}  # by their places
        self._mentions: dict[str, str] = {}  # how the grammar mentions these, by all places that they have
        self._schemas: dict[str, str] = {}  # the same by what a schema says, and how it is taken
        self._bytes: LLTokenizer | None = None

    def compile(self, special: Mapping[str, int] = NONE) -> LLMatcher:
        """See compile_grammar."""
        matcher = _matcher(self._tokenizer, self._grammars(special))
        error = matcher.get_error()
        if not error:
            self._check_ends()
            error = _first_mask_error(matcher, self._tokenizer)
        if error:
            raise self._error(error)
        if self.params.structural_tag is not None:
            self._check_parts()
        return matcher

    def source(self, special: Mapping[str, int]) -> GrammarSource:
        """What an engine with these special tokens compiles. Parts that were translated before are not again."""
        return GrammarSource(self.params.kind, self._place, self._grammars(special))

    @property
    def _place(self) -> str:
        """What an error of the whole grammar names."""
        return next(iter(self._parts)) if len(self._parts) == 1 else f".{self.params.kind}"

    def _grammars(self, special: Mapping[str, int]) -> str:
        """As JSON. Raises RequestError for what is wrong before llguidance sees it."""
        start = self._start(special)
        parts = (each for number, part in enumerate(self._parts.values()) for each in part.definitions(f"g{number}"))
        return json.dumps({"grammars": [{"name": "start", "lark_grammar": f"{start}\n{_OPTIONS}"}, *parts]})

    def _error(self, reason: str) -> RequestError:
        """The error to raise for what llguidance says of the grammar. Parts are tried alone, to name the wrong one."""
        for part in self._parts.values():
            alone = self._alone(part)
            if alone.is_error():
                return self._explain(part, alone.get_error())
        return _refusal(self._place, reason if reason in (TOO_COMPLEX, _NO_TEXT) else TOO_COMPLEX)

    def _check_ends(self) -> None:
        """Raises RequestError for a client's grammar with a rule that an answer could begin and never end."""
        for part in self._parts.values():
            rule = endless_rule(part.definition["lark_grammar"]) if part.kind == "grammar" else None
            if rule is not None:
                raise _refusal(part.place, f"the rule {rule} needs itself, without end")

    def _check_parts(self) -> None:
        """Raises RequestError for a part of a structural tag that allows no text: an answer that began it could not go
        on. Those of schemas are found before (text/json_schema)."""
        for part in self._parts.values():
            if part.kind != "json_schema":
                alone = _over_bytes({"lark_grammar": f"start: @part\n{_OPTIONS}"}, *part.definitions("part"))
                alone.compute_bitmask()
                if is_dead_end(alone):
                    raise _refusal(part.place, "no text is allowed")

    def _start(self, special: Mapping[str, int]) -> str:
        params = self.params
        if params.choice is not None:
            return f"start: {' | '.join(map(json.dumps, params.choice))}"
        if params.regex is not None:
            return f"start: {self.regex(params.regex, '.regex')}"
        if params.grammar is not None:
            return f"start: {self.grammar(params.grammar, '.grammar')}"
        if params.json is not None:
            return f"start: {self.json_schema(json.loads(params.json), '.json')}"
        if params.json_object:
            return f"start: {self.json_schema({'type': 'object'}, '.json_object')}"
        try:
            return Builder(self, special).build(json.loads(params.structural_tag))
        except TagError as error:
            raise _refusal(f".structural_tag{error.place}", error.reason) from None

    def _alone(self, part: GrammarPart) -> LLMatcher:
        """The grammar of one part, whose names are those that it has within the whole."""
        grammars = [{"lark_grammar": f"start: @part\n{_OPTIONS}"}, *part.definitions("part")]
        return _matcher(self._tokenizer, json.dumps({"grammars": grammars}))

    # ---- parts: each returns the name by which the grammar mentions it

    def json_schema(self, schema: Any, place: str, *, strict: bool | None = None, lenient: bool = False) -> str:
        """A JSON text that is valid by this schema. strict, lenient: as text/json_schema has them. Raises
        RequestError."""
        if place in self._mentions:
            return self._mentions[place]
        meaning = f"{strict} {lenient} {_without_notes(schema)}"
        if meaning in self._schemas:
            self._mentions[place] = self._schemas[meaning]
            return self._mentions[place]
        params = self.params
        whitespace = None if params.disable_any_whitespace else params.whitespace_pattern or WHITESPACE
        rules = Rules(
            closed=params.disable_additional_properties is not False,
            strict=params.strict if strict is None else strict,
            lenient=lenient,
        )
        try:
            lark, embedded = compile_schema(schema, f"g{len(self._parts)}s", rules, self._byte_matcher)
            check_patterns(schema, _exhausts)
        except SchemaError as error:
            raise _refusal(f"{place}{error.place}", error.reason) from None
        _check_depth(lark, place)
        options = _OPTIONS if whitespace is None else f"{_OF_JSON}\n%ignore /{escape_slashes(whitespace)}/"
        within = _NO_SPACE if whitespace is None else {"whitespace_pattern": whitespace}
        named = (
            {"name": name, "json_schema": {**schema, "x-guidance": dict(_NO_SPACE if initial else within)}}
            for name, (schema, initial) in embedded.items()
        )
        part = GrammarPart("json_schema", place, schema, {"lark_grammar": f"{lark}\n{options}"}, tuple(named))
        self._schemas[meaning] = self._add(part)
        return self._schemas[meaning]

    def regex(self, pattern: str, place: str, *, quoted: bool = False) -> str:
        """A text that a regular expression matches as a whole. quoted: as a JSON string writes it. Raises
        RequestError."""
        from llguidance import LLMatcher

        if place in self._mentions:
            return self._mentions[place]
        if len(pattern) - len(pattern.rstrip("\\")) & 1:  # llguidance would leave the last one out
            raise _refusal(place, f"incomplete escape sequence (at character {len(pattern)})")
        (translated,) = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
        return self._add(self._lark_part("regex", place, pattern, translated["lark_grammar"], quoted=quoted))

    def grammar(self, grammar: str, place: str, *, quoted: bool = False) -> str:
        """A text of a grammar in Lark's or GBNF's syntax. quoted: as a JSON string writes it. Raises RequestError."""
        from llguidance.gbnf_to_lark import any_to_lark

        if place in self._mentions:
            return self._mentions[place]
        try:
            lark = any_to_lark(grammar)
        except RecursionError:
            raise _refusal(place, "it is nested too deeply") from None
        except Exception as error:  # noqa: BLE001 - llguidance raises no other
            reason = _AT.sub(r" (at line \g<line>)", str(error))[:MAX_REASON_CHARS]
            raise _refusal(place, f"{reason[:1].lower()}{reason[1:]}") from None
        return self._add(self._lark_part("grammar", place, grammar, lark, quoted=quoted))

    def _lark_part(self, kind: str, place: str, content: str, lark: str, *, quoted: bool) -> GrammarPart:
        _check_depth(lark, place)
        if quoted:
            plain = GrammarPart(kind, place, content, {"lark_grammar": f"{lark}\n{_OPTIONS}"})
            alone = self._alone(plain)
            if alone.is_error():  # said of what the client wrote, before it is changed
                raise self._explain(plain, alone.get_error())
            try:
                lark = quoted_grammar.quoted(lark, self._class_bytes)
            except NotQuotable as error:
                raise _refusal(place, str(error)) from None
        return GrammarPart(kind, place, content, {"lark_grammar": f"{lark}\n{_OPTIONS}"})

    def _class_bytes(self, character_class: str) -> frozenset[int]:
        """The single bytes that a class of a regular expression matches; none if it is wrong, which is said later."""
        matcher = self._byte_matcher({"lark_grammar": f"start: /{character_class}/\n{_OPTIONS}"})
        bits = b"" if matcher.is_error() else matcher.compute_bitmask()
        return frozenset(byte for byte in range(min(256, 8 * len(bits))) if bits[byte >> 3] >> (byte & 7) & 1)

    def _add(self, part: GrammarPart) -> str:
        self._mentions[part.place] = f"@g{len(self._parts)}"
        self._parts[part.place] = part
        return self._mentions[part.place]

    def _explain(self, part: GrammarPart, error: str) -> RequestError:
        match part.kind:
            case "json_schema":
                wrong = explain_refusal(part.content, self._byte_matcher)
                return _refusal(f"{part.place}{wrong.place}", wrong.reason)
            case "regex":
                return _refusal(part.place, regex_reason(part.content, error))
        return _refusal(part.place, lark_reason(error))

    def _byte_matcher(self, *grammars: dict[str, Any]) -> LLMatcher:
        """A matcher over single bytes."""
        if self._bytes is None:
            self._bytes = byte_tokenizer()
        return _matcher(self._bytes, json.dumps({"grammars": grammars}))


def _matcher(tokenizer: LLTokenizer, grammars: str) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(tokenizer, grammars, log_level=0, limits=limits())


def _without_notes(schema: Any) -> str:
    """A schema but for its author's notes, by which alone parameters of many tools differ. A $ref may lead there."""
    said = json.dumps(schema)
    if not isinstance(schema, dict) or "$ref" in said:
        return said
    return json.dumps({key: value for key, value in schema.items() if key not in _NOTES})


def _check_depth(lark: str, place: str) -> None:
    """Raises RequestError for a grammar that llguidance's stack may be too small for."""
    if is_too_deep(lark):
        raise _refusal(place, _TOO_DEEP)


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
    return _matcher(byte_tokenizer(), json.dumps({"grammars": grammars}))


def _refusal(place: str, reason: str) -> RequestError:
    """place: below the field, as `.json.properties.name`."""
    return RequestError(f"{FIELD}{place} cannot be used: {reason}.", param=f"{FIELD}{place}")


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
    def from_vocabulary(cls, vocabulary: Vocabulary, size: int, ends: tuple[int, ...]) -> TokenTable:
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


def special_tokens(vocabulary: Vocabulary, ends: tuple[int, ...]) -> dict[str, int]:
    """A model's special tokens by their texts, and those that end a text; none where tokens do not stand for bytes."""
    if vocabulary.pieces is None:
        return {}
    return {
        vocabulary.token_bytes(token).decode(errors="replace"): token
        for token in sorted({*vocabulary.special_ids, *ends})
    }


def byte_tokenizer() -> LLTokenizer:
    """For checking a grammar without a model."""
    return TokenTable([bytes((value,)) for value in range(256)]).tokenizer()
