"""How a model that reads a text by its encoder begins an answer, as config.json and generation_config.json say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tessera.config.modalities import encoder_length
from tessera.errors import ModelError

_START, _FORCED, _NEVER = "decoder_start_token_id", "forced_bos_token_id", "bad_words_ids"


@dataclass(frozen=True)
class SourceTextConfig:
    """Of one model."""

    # The tokens that its decoder begins with: the one that starts any answer and, of some, the one that a text begins
    # with, such as its language.
    begin: tuple[int, ...]
    # The most tokens that the encoder reads.
    length: int
    # Tokens that no answer has.
    never: tuple[int, ...] = ()

    def begin_in(self, language: int) -> tuple[int, ...]:
        """What an answer in a language begins with. language: the token that stands for it."""
        return self.begin[0], language


def source_text_config(
    checkpoint: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int
) -> SourceTextConfig:
    """checkpoint: config.json of such a model. generation: its generation_config.json. Raises ModelError."""
    said = {**checkpoint, **{name: value for name, value in generation.items() if value is not None}}
    begin = [
        _token(said, name, vocab_size) for name in (_START, _FORCED) if name == _START or said.get(name) is not None
    ]
    words = said.get(_NEVER) or []
    never = [word[0] for word in words if isinstance(word, list) and len(word) == 1] if isinstance(words, list) else []
    if any(type(token) is not int or not 0 <= token < vocab_size for token in never):
        raise ModelError(f"{_NEVER} of the model must be lists of tokens of its vocabulary.")
    return SourceTextConfig(tuple(begin), encoder_length(checkpoint), tuple(dict.fromkeys(never)))


def _token(values: Mapping[str, Any], name: str, vocab_size: int) -> int:
    value = values.get(name)
    if type(value) is not int or not 0 <= value < vocab_size:
        raise ModelError(f"{name} in generation_config.json or config.json must be a token of the model's vocabulary.")
    return value
