"""The prompt of Canary (arXiv:2509.14128) and Cohere ASR, which says in which language is spoken, and in which to
write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tessera.config.model_folder import token_ids
from tessera.config.speech import SpeechConfig
from tessera.errors import ModelError

_CANARY = "CanaryForConditionalGeneration"
_AHEAD = ("<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>")
_BEHIND = ("<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>")
"""With punctuation and capitals, numbers in words, no times and no speakers."""
_LANGUAGES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        _CANARY: (
            "bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "hr", "hu", "it", "lt", "lv", "mt", "nl", "pl",
            "pt", "ro", "ru", "sk", "sl", "sv", "uk",
        ),
        "CohereAsrForConditionalGeneration": (
            "ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh",
        ),
    }
)  # fmt: skip
"""Codes of those that these models were made for, as transformers' processors have them. Their vocabularies have tokens
for more."""


def told_language(speech: SpeechConfig, config: Mapping[str, Any], tokenizer: Path) -> SpeechConfig:
    """The same with such a prompt, where the model has it. config: of config.json. tokenizer: its folder. Raises
    ModelError."""
    architecture = str(config["architectures"][0])
    codes = _LANGUAGES.get(architecture)
    if codes is None:
        return speech
    ahead, behind = _tokens(tokenizer, _AHEAD), _tokens(tokenizer, _BEHIND)
    known = token_ids(tokenizer, [f"<|{code}|>" for code in codes])
    languages = {code: token for code, token in zip(codes, known, strict=True) if token is not None}
    if not languages:
        raise ModelError("The tokenizer of this model has no tokens for languages.")
    return replace(
        speech,
        ahead=ahead[1:] if ahead[0] == speech.start else ahead,
        behind=behind,
        languages=languages,
        names_target=True,
        to_english=architecture == _CANARY and "en" in languages,
    )


def _tokens(tokenizer: Path, texts: Sequence[str]) -> tuple[int, ...]:
    """Raises ModelError if one is not there."""
    found = token_ids(tokenizer, texts)
    if None in found:
        raise ModelError(f"The tokenizer of this model has no token {texts[found.index(None)]}.")
    return tuple(token for token in found if token is not None)
