"""SamplingParams: names and defaults are vLLM's, each value that does not hold is refused by name; and what they become
for one model's engine."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from tessera.config import ModelConfig
from tessera.engine.input_processor import bad_word_texts, resolved, with_bad_words
from tessera.errors import RequestError
from tessera.sampling_params import SamplingParams, StructuredOutputsParams, snapshot
from tessera.text import Tokenizer
from tests.unit.engine.bytewise import NUM_TOKENS, byte_level, byte_tokenizer

TOKENIZER = byte_tokenizer()
MODEL = ModelConfig("", "bytes", {}, NUM_TOKENS, 100)

BAD: dict[str, list[Any]] = {
    "presence_penalty": [-2.1, 2.1, math.nan, math.inf, "1", True, None],
    "frequency_penalty": [-2.1, 2.1, math.nan, -math.inf],
    "repetition_penalty": [0, -1.0, math.nan, math.inf, 1e-9, 1e9],
    "prompt_logprobs": [-2, 1.0, True, "5"],
    "logprobs": [-2, 1.0, True],
    "logit_bias": [{"a": 1}, {-1: 1}, {True: 1}, {5: math.nan}, {5: math.inf}, {5: "1"}, [5], "5", {1.5: 1}],
    "allowed_token_ids": [[], [-1], [1.5], ["1"], "5", 5, [True]],
    "bad_words": ["word", [""], [5], ["x" * 257], 5, [f"w{i}" for i in range(1025)]],
    "bad_words_ids": [[[]], [5], [[-1]], [[1] * 65], [["x"]], [[1]] * 2049],
    "stream_interval": [0, -1, 1.5],
    "seed": [2**64, -(2**63) - 1, 10**5000],
    "extra_args": [
        {"a": 10**400},
        {"a": -(10**5000)},
        5,
        {"a": "x"},
        {"": 1},
        {5: 1},
        {"a": math.nan},
        {str(i): 1 for i in range(65)},
    ],
    "structured_outputs": [
        {},
        5,
        "a",
        ["a"],
        {"regex": "a", "choice": ["a"]},
        {"regex": ""},
        {"regex": 5},
        {"regex": "a" * 16385},
        {"choice": []},
        {"choice": "a"},
        {"choice": [""]},
        {"choice": [5]},
        {"choice": [["a"]]},
        {"choice": [{}]},
        {"choice": ["a" * 1025]},
        {"choice": [str(number) for number in range(1025)]},
        {"choice": [f"{number:01000}" for number in range(17)]},
        {"choice": ["\ud800"]},
        {"regex": "\udfff"},
        {"rgex": "a"},
        {"json": "{"},
        {"json": [{}]},
        {"json": {"a": "x" * 2**18}},
        {"grammar": ""},
        {"grammar": False},
        {"regex": "a", "grammar": False},
        {"choice": False},
        {"structural_tag": False},
        {"json_object": False},
        {"json_object": 1},
        {"structural_tag": True},
        {"structural_tag": "[]"},
        {"regex": "a", "json": {}},
        {"regex": "a", "whitespace_pattern": ""},
        {"json": {}, "disable_any_whitespace": "yes"},
    ],
    "thinking_token_budget": [0, 5],
    "truncation_side": ["middle", "", 5],
    "repetition_detection": [{"max_pattern_size": 3}],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_by_name(name: str) -> None:
    for value in BAD[name]:
        with pytest.raises(RequestError) as refused:
            SamplingParams(**{name: value})
        assert refused.value.param is not None
        assert refused.value.param.startswith(name)
        assert name in refused.value.message


def test_what_crosses_a_process_is_the_same_there() -> None:
    params = SamplingParams(
        presence_penalty=1, repetition_penalty=1.5, logit_bias={"7": 500, 8: -0.5}, allowed_token_ids=[1, 2],
        bad_words=["a", "a", "b"], bad_words_ids=[[1, 2]], stop="x", prompt_logprobs=-1, extra_args={"x": 1.5},
        temperature=0.001, structured_outputs={"choice": ["a", "b", "a"], "json_object": False},
    )  # fmt: skip
    assert params.logit_bias == {7: 100.0, 8: -0.5}
    assert params.bad_words == ("a", "b")
    assert params.structured_outputs == StructuredOutputsParams(choice=("a", "b"), json_object=False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert msgspec.msgpack.encode(SamplingParams()) == msgspec.msgpack.encode(SamplingParams(bad_words=[]))


@pytest.mark.parametrize(
    ("fields", "penalised"),
    [
        ({}, False),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -1}, True),
        ({"repetition_penalty": 2}, True),
    ],
)
def test_whether_it_penalises(fields: dict[str, float], penalised: bool) -> None:
    assert SamplingParams(**fields).penalised is penalised


# ---- for one model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {NUM_TOKENS: 1}),
        ("allowed_token_ids", [5, NUM_TOKENS]),
        ("bad_words_ids", [[5, NUM_TOKENS]]),
        ("stop_token_ids", [NUM_TOKENS]),
        ("logprobs", 21),
        ("logprobs", -1),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
    ],
)
def test_what_the_model_does_not_have_is_refused_by_name(name: str, value: Any) -> None:
    params = SamplingParams(**{name: value})
    with pytest.raises(RequestError) as refused:
        resolved(params, MODEL)
    assert refused.value.param == name


def test_minus_one_is_the_vocabulary_where_the_operator_allows_it() -> None:
    model = ModelConfig("", "bytes", {}, NUM_TOKENS, 100, max_logprobs=-1)
    params = resolved(SamplingParams(logprobs=-1, prompt_logprobs=-1), model)
    assert (params.logprobs, params.prompt_logprobs) == (NUM_TOKENS, NUM_TOKENS)


def test_bad_words_are_their_tokens_with_a_space_in_front_and_without() -> None:
    """Here a space is a token of its own, so the form with one ends in the other, which forbids it."""
    params = tokenized(SamplingParams(bad_words=["no", " é"], bad_words_ids=[[1]]), TOKENIZER)
    assert params.bad_words is None
    assert [list(word) for word in params.bad_words_ids or ()] == [list(b"no"), list("é".encode()), [1]]


@pytest.mark.parametrize("word", ["no", " no", "  no"])
def test_both_forms_are_forbidden_however_many_tokens_each_has(word: str) -> None:
    space_in_front = _bpe(["n", "o", "\u0120", "\u010a", "\u0120n", "\u0120no"], [("\u0120", "n"), ("\u0120n", "o")])
    space_in_front.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert _forbidden(space_in_front, word) == [["\u0120no"], ["n", "o"]]


@pytest.mark.parametrize("word", ["no", " no"])
def test_a_tokenizer_that_adds_a_space_has_the_form_without_one_after_a_line_break(word: str) -> None:
    """As SentencePiece's do, at the beginning of a text."""
    dummy_prefix = _bpe(["n", "o", "\n", "▁", "▁n", "▁no"], [("▁", "n"), ("▁n", "o")])
    dummy_prefix.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    assert _forbidden(dummy_prefix, word) == [["▁no"], ["n", "o"]]


def test_a_bad_word_may_be_white_space() -> None:
    assert _forbidden(byte_level(), " ") == [["\u0120"]]
    assert _forbidden(byte_level(), "\n\n") == [["\u010a", "\u010a"]]


def test_bad_words_of_too_many_tokens_are_refused() -> None:
    assert tokenized(SamplingParams(bad_words=["x" * 64]), TOKENIZER).bad_words_ids == ([ord("x")] * 64,)
    with pytest.raises(RequestError, match="1 to 64 tokens, got 65") as refused:
        tokenized(SamplingParams(bad_words=["x" * 65]), TOKENIZER)
    assert refused.value.param == "bad_words"


def test_bad_words_and_their_ids_have_one_limit() -> None:
    params = SamplingParams(bad_words=["no", "never"], bad_words_ids=[[1]] * 2046)
    assert len(tokenized(params, TOKENIZER).bad_words_ids or ()) == 2048
    with pytest.raises(RequestError, match="at most 2048 lists of token ids, these 2049") as refused:
        tokenized(SamplingParams(bad_words=["no", "never"], bad_words_ids=[[1]] * 2047), TOKENIZER)
    assert refused.value.param == "bad_words"


def tokenized(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    return with_bad_words(params, [tokenizer.encode(text, False) for text in bad_word_texts(params)])


def _forbidden(tokenizer: tokenizers.Tokenizer, word: str) -> list[list[str]]:
    """The tokens of what is forbidden, as the vocabulary spells them."""
    params = tokenized(SamplingParams(bad_words=[word]), Tokenizer(tokenizer, {}))
    return [[tokenizer.id_to_token(token) for token in ids] for ids in params.bad_words_ids or ()]


def _bpe(vocabulary: list[str], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    numbered = {token: number for number, token in enumerate(vocabulary)}
    return tokenizers.Tokenizer(models.BPE(vocab=numbered, merges=merges))


def test_parameters_that_need_nothing_are_themselves() -> None:
    params = SamplingParams(temperature=0.5, logprobs=5, logit_bias={1: 1.0})
    assert resolved(params, MODEL) is params


# ---- fields that are set later ---------------------------------------------------------------------------------------


def test_fields_may_be_set_and_are_checked_when_a_request_takes_its_copy() -> None:
    params = SamplingParams(temperature=0.5, stop="a", top_k=-1)
    params.max_tokens, params.stop, params.n = 7, "b", 2
    assert params.clone() == snapshot(params) == SamplingParams(temperature=0.5, stop=["b"], max_tokens=7, n=2)
    assert (snapshot(params).stop, snapshot(params).max_tokens) == (("b",), 7)
    params.temperature = 0  # not yet what goes together
    with pytest.raises(RequestError, match="n must be 1 when using greedy sampling"):
        params.clone()
    params.n = 1
    assert snapshot(params).greedy


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_that_is_set_is_refused_by_name(name: str) -> None:
    for value in BAD[name]:
        params = SamplingParams()
        setattr(params, name, value)
        for copy_of in (snapshot, SamplingParams.clone):
            with pytest.raises(RequestError) as refused:
                copy_of(params)
            assert (refused.value.param or "").partition(".")[0] == name


def test_a_request_s_copy_does_not_see_later_changes() -> None:
    params = SamplingParams(logit_bias={5: 1.0}, extra_args={"a": 1}, max_tokens=3)
    taken = snapshot(params), params.clone()
    params.max_tokens = 9
    assert params.logit_bias is not None
    assert params.extra_args is not None
    params.logit_bias[6] = 2.0
    params.extra_args["b"] = 2
    for copied in taken:
        assert (copied.max_tokens, copied.logit_bias, copied.extra_args) == (3, {5: 1.0}, {"a": 1.0})
    params.logit_bias["x"] = 1  # type: ignore[index]  # what a user might write
    with pytest.raises(RequestError, match="logit_bias has a key that is no token id"):
        snapshot(params)


def test_none_is_a_default_where_it_is_asked_for() -> None:
    fields: dict[str, Any] = dict.fromkeys(SamplingParams.__struct_fields__)
    assert SamplingParams.from_optional(**fields) == SamplingParams()
    assert SamplingParams.from_optional(top_k=None, temperature=0.5) == SamplingParams(temperature=0.5)
    with pytest.raises(RequestError, match="temperature must be a finite number"):
        SamplingParams.from_optional(temperature="warm")


def test_that_a_field_was_set_is_neither_compared_nor_sent() -> None:
    params = SamplingParams()
    params.seed = None
    assert params == SamplingParams()
    assert msgspec.msgpack.encode(params) == msgspec.msgpack.encode(SamplingParams())
    assert repr(params) == repr(SamplingParams())
