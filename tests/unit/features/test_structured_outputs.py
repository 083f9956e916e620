"""The engine half of structured outputs: one compiler thread, a bounded number of grammars, a matcher a request."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLParserLimits

from tessera.arrays import int32
from tessera.config import EngineConfig, ModelConfig
from tessera.errors import ConfigError, RequestError
from tessera.features import structured_outputs
from tessera.features.grammar import CompiledGrammar, GrammarPosition
from tessera.features.structured_outputs import StructuredOutputs
from tessera.request import Request
from tessera.sampling_params import GrammarSource, SamplingParams
from tessera.text import grammar as grammar_module
from tests.unit.engine.bytewise import END, NUM_TOKENS, byte_level


@pytest.fixture
def feature(tmp_path: Path) -> StructuredOutputs:
    save_tokenizer(tmp_path)
    return feature_of(str(tmp_path))


def save_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(byte_level().to_str())
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')


def feature_of(tokenizer: str, vocab: int = NUM_TOKENS) -> StructuredOutputs:
    model = ModelConfig("", "bytes", {}, vocab, 100, eos_token_ids=(END,), tokenizer=tokenizer)
    return StructuredOutputs(EngineConfig(model=model, platform=""), "")


def begin(feature: StructuredOutputs, regex: str | None, **params: object) -> GrammarPosition | None:
    asked = None if regex is None else {"regex": regex}
    return feature.begin(Request(0, "0", int32([1]), SamplingParams(structured_outputs=asked, **params), 5, 0))


def ready(grammar: GrammarPosition | None) -> GrammarPosition:
    assert grammar is not None
    while not grammar.ready():
        time.sleep(0.001)
    return grammar


def allowed(grammar: GrammarPosition) -> list[int]:
    bits = np.full(-(-NUM_TOKENS // 32), -1, np.int32)
    grammar.mask(bits)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:NUM_TOKENS]).tolist()


def test_a_request_without_a_grammar_has_nothing_of_it(feature: StructuredOutputs) -> None:
    assert begin(feature, None) is None


def test_each_request_is_at_its_own_place(feature: StructuredOutputs) -> None:
    one, two = ready(begin(feature, "a[bc]")), ready(begin(feature, "a[bc]"))
    assert one.accept(ord("a"))
    assert allowed(one) == [ord("b"), ord("c")]
    assert allowed(two) == [ord("a")]
    assert one.accept(ord("b"))
    assert one.complete
    assert not two.complete
    assert not two.accept(ord("b"))
    assert not two.complete


def test_masks_keep_what_others_have_cleared(feature: StructuredOutputs) -> None:
    grammar = ready(begin(feature, "[a-d]"))
    bits = np.full(-(-NUM_TOKENS // 32), -1, np.int32)
    bits[ord("b") >> 5] &= ~(1 << (ord("b") & 31))
    grammar.mask(bits)
    left = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
    assert left == [ord("a"), ord("c"), ord("d")]


def test_an_end_of_text_that_is_ignored_is_never_allowed(feature: StructuredOutputs) -> None:
    grammar, ignoring = ready(begin(feature, "a+")), ready(begin(feature, "a+", ignore_eos=True))
    for one in (grammar, ignoring):
        one.accept(ord("a"))
    assert allowed(grammar) == [ord("a"), END]
    assert allowed(ignoring) == [ord("a")]


@pytest.mark.parametrize("vocab", [NUM_TOKENS, 2 * NUM_TOKENS])
def test_masks_of_many_requests_are_those_of_each(tmp_path: Path, vocab: int) -> None:
    """At the start, within, where it may end, with and without an end of text, and after a token that was not
    allowed; bits that others have cleared stay so. A vocabulary may be larger than the tokenizer's."""
    save_tokenizer(tmp_path)
    feature = feature_of(str(tmp_path), vocab)
    grammars = [ready(begin(feature, "a+[bc]*")), ready(begin(feature, "a+[bc]*", ignore_eos=True))]
    grammars += [ready(begin(feature, regex)) for regex in ("a+[bc]*", "[^a]x", "a")]
    for grammar in (*grammars[1:3], grammars[4]):
        assert grammar.accept(ord("a"))
    grammars[0].accept(ord("z"))
    bits = np.random.default_rng(3).integers(-(2**31), 2**31, (len(grammars), -(-vocab // 32)), np.int32)
    expected = bits.copy()
    for grammar, own in zip(grammars, expected, strict=True):
        grammar.mask(own)
    feature.mask(grammars, bits)
    assert np.array_equal(bits, expected)
    assert np.any(bits)


def test_a_wrong_grammar_never_becomes_ready(feature: StructuredOutputs) -> None:
    with pytest.raises(RequestError, match="unclosed group"):
        ready(begin(feature, "(a"))
    assert ready(begin(feature, "a")).accept(ord("a"))


def test_as_many_grammars_are_kept_as_were_used_last(
    feature: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured_outputs, "MAX_GRAMMARS", 3)
    compiled = []
    compile_grammar = structured_outputs.compile_grammar
    monkeypatch.setattr(
        structured_outputs,
        "compile_grammar",
        lambda asked, tok, special: compiled.append(asked.regex) or compile_grammar(asked, tok),
    )
    for regex in ("a", "b", "c", "a", "d", "a", "b"):
        ready(begin(feature, regex))
    assert compiled == ["a", "b", "c", "d", "b"]


def test_a_grammar_that_was_translated_before_is_compiled_as_it_is(
    feature: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured_outputs, "compile_grammar", None)
    for asked, text in (({"json": {"const": 5}}, "5"), ({"choice": ["ab"]}, "ab")):
        params = SamplingParams(structured_outputs=asked)
        params.grammar_source = grammar_module.Grammar(
            params.structured_outputs, grammar_module.byte_tokenizer()
        ).source({})
        grammar = ready(feature.begin(Request(0, "0", int32([1]), params, 5, 0)))
        for byte in text.encode():
            assert allowed(grammar) == [byte]
            assert grammar.accept(byte)
        assert grammar.complete


def test_an_error_of_a_grammar_that_was_translated_before_names_its_place(feature: StructuredOutputs) -> None:
    ends = GrammarSource("json", ".json", json.dumps({"grammars": [{"lark_grammar": 'start: ""'}]}))
    wrong = GrammarSource("structural_tag", ".structural_tag.format", json.dumps({"grammars": [{"lark_grammar": "("}]}))
    for source, reason in ((ends, "no text is allowed"), (wrong, "it is too large or too complex")):
        params = SamplingParams(structured_outputs={"json": {}}, grammar_source=source)
        with pytest.raises(RequestError, match=rf"^structured_outputs\{source.place} cannot be used: {reason}"):
            ready(feature.begin(Request(0, "0", int32([1]), params, 5, 0)))


def test_without_a_tokenizer_a_grammar_is_refused() -> None:
    with pytest.raises(RequestError, match="No tokenizer is loaded"):
        begin(feature_of(""), "a")
    assert begin(feature_of(""), None) is None


def test_it_takes_no_option() -> None:
    with pytest.raises(ConfigError):
        StructuredOutputs(EngineConfig(model=ModelConfig("", "", {}, 1, 1), platform=""), "fast")


def test_nothing_is_imported_before_it_is_used() -> None:
    import subprocess

    code = "import sys, tessera.features.structured_outputs; sys.exit('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- grammars that come to an end without being complete

DEAD_END = 'start: "a" ["b" rest::0x0]\nrest::_: "c" %if bit_set(0)'
"""May be `a`; after `ab` nothing may follow."""
TEXT = {"type": "string", "pattern": r"^(\S+\s+){0,29}\S+$", "maxLength": 300}
LATER = {**TEXT, "pattern": r"^[a-z]{8}(\S+\s+){0,29}\S+$"}
WORDS = {"json": {"anyOf": [{"type": "integer"}, LATER]}}
"""Numbers are cheap, texts take more than the limits of the fixture `poor` after eight letters."""


def asks(feature: StructuredOutputs, asked: dict[str, Any]) -> GrammarPosition:
    return ready(feature.begin(Request(0, "0", int32([1]), SamplingParams(structured_outputs=asked), 5, 0)))


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little fuel for a mask within WORDS."""
    rich = grammar_module.limits()
    limits = LLParserLimits(
        initial_lexer_fuel=rich.initial_lexer_fuel,
        step_lexer_fuel=5_000,
        max_lexer_states=rich.max_lexer_states,
        verbose_errors=False,
    )
    monkeypatch.setattr(grammar_module, "limits", lambda: limits)


def test_a_dead_end_is_a_failure_and_never_an_end(feature: StructuredOutputs, caplog) -> None:
    grammars = [asks(feature, {"grammar": DEAD_END}) for _ in range(2)]
    for grammar in grammars:
        assert allowed(grammar) == [ord("a")]
        assert grammar.accept(ord("a"))
        assert allowed(grammar) == [ord("b"), END]
        assert grammar.accept(ord("b"))
        assert grammar.failure is None
        assert not grammar.complete
        assert allowed(grammar) == []
        assert grammar.failure is not None
        assert grammar.failure.reason == "dead_end"
        assert not grammar.complete
        assert not grammar.accept(END)
    assert [record.message for record in caplog.records] == [
        "a grammar (grammar) ended an answer with an error after 2 tokens: dead_end; logged once for each grammar"
    ]


def test_a_text_that_the_vocabulary_cannot_spell_is_a_dead_end(tmp_path: Path) -> None:
    tokenizer = json.loads(byte_level().to_str())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["zzzz"] = vocabulary.pop(next(piece for piece, token in vocabulary.items() if token == 0xA9))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    grammar = asks(feature_of(str(tmp_path)), {"choice": ["a\u00e9"]})
    for byte in b"a\xc3":
        assert allowed(grammar) == [byte]
        assert grammar.accept(byte)
    assert allowed(grammar) == []
    assert grammar.failure is not None
    assert grammar.failure.reason == "dead_end"


def test_an_end_of_text_is_accepted_only_where_the_answer_is_complete(feature: StructuredOutputs) -> None:
    grammar = asks(feature, {"regex": "ab?"})
    assert not grammar.accept(END)
    grammar = asks(feature, {"regex": "ab?"})
    assert grammar.accept(ord("a"))
    assert grammar.accept(END)
    grammar = asks(feature, {"regex": "ab"})
    assert grammar.accept(ord("a"))
    assert grammar.accept(ord("b"))
    assert grammar.complete
    assert grammar.accept(END)


def test_an_end_of_text_within_a_grammar_ends_it_where_the_grammar_demands_it(feature: StructuredOutputs) -> None:
    tag = {"type": "tag", "begin": "a", "content": {"type": "const_string", "value": "b"}, "end": "<|end|>"}
    grammar = asks(feature, {"structural_tag": {"type": "structural_tag", "format": tag}})
    for token in (ord("a"), ord("b"), END):
        assert allowed(grammar) == [token]
        assert grammar.accept(token)


@pytest.mark.usefixtures("poor")
@pytest.mark.parametrize("vocab", [NUM_TOKENS, 512])
def test_one_request_s_exhaustion_reaches_no_other(tmp_path: Path, caplog, vocab: int) -> None:
    """Not those that run, at any place, together or alone, nor those that come later."""
    save_tokenizer(tmp_path)
    feature = feature_of(str(tmp_path), vocab)
    greedy, running, started = (asks(feature, WORDS) for _ in range(3))
    for token in b"12":
        assert token in allowed(running)
        assert running.accept(token)
    assert all(greedy.accept(token) for token in b'"abcdefghi')
    bits = np.full((3, -(-vocab // 32)), -1, np.int32)
    feature.mask([running, greedy, started], bits)
    assert not bits[1].any()
    assert greedy.failure is not None
    assert greedy.failure.reason == "too_complex"
    assert not greedy.complete
    assert not greedy.accept(END)
    digits = list(range(ord("0"), ord("9") + 1))
    starts = [*b'\t\n "-', *digits]
    for grammar, expected in ((running, [*digits, END]), (started, starts)):
        assert grammar.failure is None
        assert allowed(grammar) == expected
    for token in b"345":
        assert running.accept(token)
        assert allowed(running) == [*digits, END]
    assert running.accept(END)
    later = asks(feature, WORDS)
    assert allowed(later) == starts
    assert later.accept(ord("-"))
    assert allowed(later) == digits[1:]
    assert [record.message for record in caplog.records] == [
        "a grammar (json) ended an answer with an error after 10 tokens: too_complex; logged once for each grammar"
    ]


def test_a_lexer_that_has_too_many_states_is_replaced(
    feature: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States add up over answers; each answer for itself needs fewer than there may be."""
    rich = grammar_module.limits()
    few = LLParserLimits(step_lexer_fuel=rich.step_lexer_fuel, max_lexer_states=800, verbose_errors=False)
    monkeypatch.setattr(grammar_module, "limits", lambda: few)
    rng = np.random.default_rng(7)
    made = []
    fresh = CompiledGrammar.fresh
    monkeypatch.setattr(CompiledGrammar, "fresh", lambda self, tokens: made.append(len(tokens)) or fresh(self, tokens))
    for _ in range(8):
        grammar = asks(feature, {"json": TEXT})
        for _ in range(60):
            tokens = [token for token in allowed(grammar) if token < 128]
            assert tokens, grammar.failure
            assert grammar.accept(int(rng.choice(tokens)))
            if grammar.complete:
                break
    assert made


def test_a_dead_end_after_drafts_fails_only_where_they_are_taken(feature: StructuredOutputs) -> None:
    for taken in (True, False):
        grammar = asks(feature, {"grammar": DEAD_END})
        assert grammar.accept(ord("a"))
        drafts = int32([ord("b"), ord("c")])
        assert grammar.num_allowed(drafts) == 1
        assert grammar.accept(ord("b"))
        assert allowed(grammar) == []
        grammar.rollback(1)
        assert grammar.failure is None
        assert allowed(grammar) == [ord("b"), END]
        if taken:
            assert grammar.accept(ord("b"))
            assert not grammar.accept(0)
            assert grammar.failure is not None
            assert grammar.failure.reason == "dead_end"
        else:
            assert grammar.accept(END)
