"""Grammars over a vocabulary: what is allowed, byte by byte, and what is said of a grammar that cannot be used."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from llguidance import LLParserLimits

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text import Tokenizer, grammar
from tessera.text.grammar import TokenTable, byte_tokenizer, compile_grammar
from tests.unit.engine.bytewise import END, NUM_TOKENS
from tests.unit.engine.bytewise import byte_tokenizer as vocabulary

BYTES = byte_tokenizer()


def accepts(asked: StructuredOutputsParams, text: str) -> bool:
    matcher = compile_grammar(asked, BYTES)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("regex", "texts"),
    [
        ("a+b?", ["a", "aab", "ab", "b", "abb", ""]),
        ("^[0-9]{2}$", ["12", "1", "123"]),
        (r"\d+\.\d", ["1.5", "1.", "x"]),
        ("é|日本", ["é", "日本", "日"]),
        ("(?i)yes", ["YES", "yEs", "no"]),
        (r"\"[^\"]*\"", ['"a b"', '"', "a"]),
        (r"a\\", ["a\\", "a"]),
        (r"a/\/[/]", ["a///", "a//"]),
    ],
)
def test_a_regex_matches_a_text_as_a_whole(regex: str, texts: list[str]) -> None:
    for text in texts:
        assert accepts(StructuredOutputsParams(regex=regex), text) == bool(re.fullmatch(regex, text)), text


def test_a_choice_is_its_texts_and_nothing_of_them_is_syntax() -> None:
    choices = ["a", "ab", 'say "x"', "back\\slash", "/.*/", "line\nbreak", "tab\t", "é", "日本語", "a|b", "x" * 1000]
    asked = StructuredOutputsParams(choice=choices)
    for text in choices:
        assert accepts(asked, text), text
    for text in ("", "b", "abc", "é!", "/x/"):
        assert not accepts(asked, text), text


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("(a", "unclosed group (at character 1)"),
        ("abc)", "unopened group (at character 4)"),
        ("日本/\n[a", "unclosed character class (at character 5)"),
        (r"a\/b(", "unclosed group (at character 5)"),
        ("a(?=b)", "look-around, including look-ahead and look-behind, is not supported (at character 2)"),
        (r"(a)\1", "backreferences are not supported (at character 4)"),
        ("[z-a]", "invalid character class range, the start must be <= the end (at character 2)"),
        ("x" * 9 + r"\q", "unrecognized escape sequence (at character 10)"),
        (r"\w+\\" + "\\", "incomplete escape sequence (at character 6)"),
        (
            "(" * 400 + "a" + ")" * 400,
            "exceed the maximum number of nested parentheses/brackets (250) (at character 251)",
        ),
        (r"\bword", r"^ may only be its beginning and $ its end; \b and \B are not supported"),
        ("a$b", r"^ may only be its beginning and $ its end; \b and \B are not supported"),
        (r"[^\s\S]", "no text is allowed, or only the empty one"),
        ("()", "no text is allowed, or only the empty one"),
    ],
)
def test_a_regex_that_cannot_be_used_is_refused_in_one_line(regex: str, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        compile_grammar(StructuredOutputsParams(regex=regex), BYTES)
    assert refused.value.message == f"structured_outputs.regex cannot be used: {reason}."
    assert refused.value.param == "structured_outputs.regex"


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('start: "a" B?\nB: /b+/', ["a", "abb"], ["b"]),
        ('root ::= "a" b*\nb ::= [0-9] | "x"', ["a", "a1x"], ["ab"]),
        ('%ignore / /\nstart: "a" "b"', ["ab", "a b"], ["a"]),
        ('start: %json {"type": "integer"}', ["12"], ["x"]),
        ('%llguidance {"no_forcing": false}\nstart: "abc" /d?/', ["abc", "abcd"], ["ab"]),
        ('start: a "c"\na[max_tokens=2, temperature=0.5]: /x+/', ["xxc"], ["xxxxc"]),
    ],
)
def test_a_grammar_is_in_lark_s_or_gbnf_s_syntax(grammar: str, right: list[str], wrong: list[str]) -> None:
    asked = StructuredOutputsParams(grammar=grammar)
    for text in right:
        assert accepts(asked, text), text
    for text in wrong:
        assert not accepts(asked, text), text


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: foo", 'unknown name: "foo" (at line 1, column 8)'),
        ('x: "a"', "expected ::= (at line 1)"),
        ('start: "a" <|end|>', "special tokens are not supported in a grammar (at line 1, column 8)"),
        ("start: @g0", "unknown grammar @g0"),
        ("start: @other", "unknown grammar @other"),
        ('start: %json {"uniqueItems": true}', 'failed to compile JSON schema: Unimplemented keys: ["uniqueItems"]'),
        ("root ::= foo", "rule 'foo' not found"),
        ('root ::= "a', "unexpected end of input (at line 1)"),
        ("root ::= " + "(" * 5000, "it is nested too deeply"),
    ],
)
def test_a_grammar_that_is_wrong_is_refused_in_one_line(grammar: str, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        compile_grammar(StructuredOutputsParams(grammar=grammar), BYTES)
    assert refused.value.message.startswith(f"structured_outputs.grammar cannot be used: {reason}")
    assert "\n" not in refused.value.message


def test_a_grammar_that_exceeds_a_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "limits", lambda: LLParserLimits(initial_lexer_fuel=1))
    with pytest.raises(RequestError, match=r"regex cannot be used: it is too large or too complex\."):
        compile_grammar(StructuredOutputsParams(regex="[a-z]{3}x"), BYTES)


def test_no_regex_takes_long() -> None:
    begin = time.process_time()
    for regex in (
        "(a{1000}){1000}",
        "(.*a){30}b",
        "(a|aa)*" * 50,
        r"\p{L}{1000}",
        "((a?){30}){30}",
        "(a|b)*a(a|b){20}",
    ):
        try:
            matcher = compile_grammar(StructuredOutputsParams(regex=regex), BYTES)
        except RequestError:
            continue
        matcher.consume_tokens(list(b"ab" * 20))
        matcher.compute_bitmask()
    assert time.process_time() - begin < 15


def test_as_many_choices_as_are_taken_are_served() -> None:
    choices = [f"{number:04}-choice" for number in range(1024)]
    asked = StructuredOutputsParams(choice=choices)
    for text in choices[::100]:
        assert accepts(asked, text)


def allowed(matcher: object, size: int) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:size]
    return np.flatnonzero(bits).tolist()


def test_the_end_of_text_is_allowed_exactly_where_the_grammar_may_end() -> None:
    tokenizer = TokenTable.from_vocabulary(vocabulary(), NUM_TOKENS, (END,)).tokenizer()
    matcher = compile_grammar(StructuredOutputsParams(regex="ab?"), tokenizer)
    assert allowed(matcher, NUM_TOKENS) == [ord("a")]
    assert matcher.consume_token(ord("a"))
    assert allowed(matcher, NUM_TOKENS) == [ord("b"), END]
    assert not matcher.is_stopped()
    assert matcher.consume_token(ord("b"))
    assert matcher.is_stopped()


def test_a_model_without_an_end_of_text_ends_by_the_grammar_alone() -> None:
    tokenizer = TokenTable.from_vocabulary(vocabulary(), 256, ()).tokenizer()
    matcher = compile_grammar(StructuredOutputsParams(regex="a{1,2}"), tokenizer)
    matcher.consume_token(ord("a"))
    assert allowed(matcher, 256) == [ord("a")]
    matcher.consume_token(ord("a"))
    assert matcher.is_stopped()


def test_rows_of_the_model_past_the_vocabulary_and_special_tokens_are_never_allowed() -> None:
    tokenizer = TokenTable.from_vocabulary(vocabulary(), 300, (END,)).tokenizer()
    matcher = compile_grammar(StructuredOutputsParams(regex=r"[\s\S]+"), tokenizer)
    assert max(allowed(matcher, 300)) < 256
    matcher.consume_token(ord("<"))
    assert allowed(matcher, 300)[-1] == END


def test_tokens_are_what_the_detokenizer_makes_of_them(tokenizer: Tokenizer) -> None:
    """In the middle of a text, where every answer begins."""
    if tokenizer.pieces is None:
        with pytest.raises(RequestError, match="needs a tokenizer whose tokens stand for bytes"):
            TokenTable.from_vocabulary(tokenizer, tokenizer.vocab_size, ())
        return
    size = tokenizer.vocab_size + 5
    table = TokenTable.from_vocabulary(tokenizer, size, ())
    matcher = compile_grammar(StructuredOutputsParams(regex="( [a-z]+|[0-9]+)+"), table.tokenizer())
    found = allowed(matcher, size)
    assert found
    for token in found:
        assert re.fullmatch("( [a-z]*|[0-9]+)+", tokenizer.token_bytes(token).decode())
