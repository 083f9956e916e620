"""The engine half of structured outputs: one compiler thread, a bounded number of grammars, a matcher a request."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.config import EngineConfig, ModelConfig
from tessera.errors import ConfigError, RequestError
from tessera.features import structured_outputs
from tessera.features.structured_outputs import Grammar, StructuredOutputs
from tessera.request import Request
from tessera.sampling_params import SamplingParams
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


def begin(feature: StructuredOutputs, regex: str | None, **params: object) -> Grammar | None:
    asked = None if regex is None else {"regex": regex}
    return feature.begin(Request(0, "0", int32([1]), SamplingParams(structured_outputs=asked, **params), 5, 0))


def ready(grammar: Grammar | None) -> Grammar:
    assert grammar is not None
    while not grammar.ready():
        time.sleep(0.001)
    return grammar


def allowed(grammar: Grammar) -> list[int]:
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
