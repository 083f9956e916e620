"""How a model that writes down speech is asked, from its generation_config.json."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.config.speech import SpeechConfig, aligner, speech_config, untimed_speech
from tessera.errors import ModelError

FILE: dict[str, Any] = {
    "decoder_start_token_id": 51,
    "eos_token_id": [50],
    "no_timestamps_token_id": 58,
    "lang_to_id": {"<|en|>": 52, "<|yue|>": 53},
    "task_to_id": {"transcribe": 54, "translate": 55},
    "suppress_tokens": [-1, 1, 2],
    "begin_suppress_tokens": [3, 50],
    "max_initial_timestamp_index": 5,
}


def test_tokens_are_read_by_what_they_are_for() -> None:
    speech = speech_config({"eos_token_id": 9}, FILE, 64)
    assert speech is not None
    assert (speech.start, speech.end, speech.previous, speech.no_speech, speech.first_time) == (51, 50, 56, 57, 59)
    assert (speech.languages, speech.translates) == ({"en": 52, "yue": 53}, True)
    assert (speech.suppressed, speech.suppressed_first, speech.most_first_time) == ((1, 2), (3, 50), 5)


def test_a_model_of_english_alone_names_no_language() -> None:
    few = {name: FILE[name] for name in ("no_timestamps_token_id",)}
    speech = speech_config({"decoder_start_token_id": 51, "eos_token_id": 50}, few, 64)
    assert speech is not None
    assert (speech.start, speech.end, speech.languages, speech.translates) == (51, 50, {}, False)
    assert (speech.suppressed, speech.most_first_time) == ((), None)


def test_words_are_timed_by_the_heads_that_the_file_names_or_else_by_the_last_ones() -> None:
    sizes = {"decoder_layers": 3, "decoder_attention_heads": 2}
    named = aligner(sizes, {"alignment_heads": [[2, 1], [0, 1], [2, 1]]})
    last = aligner(sizes, {})
    assert named is not None
    assert last is not None
    assert (named.tasks, named.alignment_heads) == (("align",), ((0, 1), (2, 1)))
    assert last.alignment_heads == ((1, 0), (1, 1), (2, 0), (2, 1))
    assert aligner({}, {}) is None
    for wrong in ([], [[3, 0]], [[0, 2]], [[0]], ["01"], {"0": 1}, [[0, True]], [[0, 0]] * 7):
        with pytest.raises(ModelError, match="alignment_heads"):
            aligner(sizes, {"alignment_heads": wrong})


def test_a_file_that_does_not_say_how_the_model_is_asked_is_none() -> None:
    assert speech_config({}, {"decoder_start_token_id": 51}, 64) is None


def test_a_model_without_times_begins_as_transformers_does() -> None:
    speech = untimed_speech({"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": None}, {}, 64, 30.0)
    assert speech == SpeechConfig(start=1, end=2)
    assert (speech.timed, speech.translates, speech.begin("", "transcribe", timed=False)) == (False, False, [1])
    said = {"decoder_start_token_id": 2, "forced_bos_token_id": 9, "eos_token_id": [2]}
    assert untimed_speech({"eos_token_id": 3}, said, 64, 20.0).begin("", "transcribe", timed=True) == [2, 9]
    with pytest.raises(ModelError, match="suppress_tokens"):
        untimed_speech(said, {"suppress_tokens": [4]}, 64, 30.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decoder_start_token_id", None),
        ("decoder_start_token_id", 64),
        ("eos_token_id", []),
        ("no_timestamps_token_id", 1),
        ("no_timestamps_token_id", 63),
        ("no_timestamps_token_id", "58"),
        ("lang_to_id", ["en"]),
        ("lang_to_id", {"<|en|>": True}),
        ("task_to_id", {"translate": 55}),
        ("suppress_tokens", [1, 99]),
        ("suppress_tokens", {"1": 1}),
        ("begin_suppress_tokens", list(range(5000))),
        ("max_initial_timestamp_index", -1),
    ],
)
def test_what_does_not_fit_is_named(name: str, value: Any) -> None:
    with pytest.raises(ModelError, match=name):
        speech_config({}, {**FILE, name: value}, 64)
