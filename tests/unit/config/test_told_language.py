"""Prompts that name languages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tessera.config.speech import SpeechConfig
from tessera.config.told_language import told_language
from tessera.errors import ModelError

CANARY = {"architectures": ["CanaryForConditionalGeneration"]}
COHERE = {"architectures": ["CohereAsrForConditionalGeneration"]}
TEXTS = (
    "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|en|>", "<|de|>", "<|xx|>", "<|pnc|>",
    "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>",
)  # fmt: skip


def write(folder: Path, *texts: str) -> Path:
    added = [{"id": 10 + number, "content": text} for number, text in enumerate(texts)]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    return folder


def test_a_prompt_says_what_is_spoken_and_what_to_write(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, *TEXTS)
    canary = told_language(SpeechConfig(start=10, end=3), CANARY, tokenizer)
    assert (canary.languages, canary.translates) == ({"de": 14, "en": 13}, True)
    assert canary.begin("de", "transcribe", timed=False) == [10, 11, 12, 14, 14, 16, 17, 18, 19]
    assert canary.begin("de", "translate", timed=False) == [10, 11, 12, 14, 13, 16, 17, 18, 19]
    cohere = told_language(SpeechConfig(start=5, end=3), COHERE, tokenizer)
    assert not cohere.translates
    assert cohere.begin("en", "transcribe", timed=False) == [5, 10, 11, 12, 13, 13, 16, 17, 18, 19]


def test_a_tokenizer_without_them_is_named(tmp_path: Path) -> None:
    speech = SpeechConfig(start=10, end=3)
    with pytest.raises(ModelError, match=r"has no token <\|nodiarize\|>"):
        told_language(speech, CANARY, write(tmp_path, *TEXTS[:-1]))
    with pytest.raises(ModelError, match="has no tokens for languages"):
        told_language(speech, CANARY, write(tmp_path, *TEXTS[:3], *TEXTS[6:]))
    assert told_language(speech, {"architectures": ["MoonshineForConditionalGeneration"]}, tmp_path) == speech
