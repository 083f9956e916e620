"""The files of a Hugging Face folder that describe a tokenizer, made from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tessera.errors import ModelError
from tessera.gguf.tokenizer.byte_level import byte_level_tokenizer
from tessera.gguf.tokenizer.components import Component
from tessera.gguf.tokenizer.config import tokenizer_config_values
from tessera.gguf.tokenizer.ends import end_tokens
from tessera.gguf.tokenizer.metadata import PREFIX, REMEDY, TokenizerMetadata, shorten
from tessera.gguf.tokenizer.sentencepiece import gemma_4_tokenizer, scored_tokenizer
from tessera.gguf.tokenizer.unigram import unigram_tokenizer
from tessera.gguf.tokenizer.word_piece import word_piece_tokenizer

_WHOLE = "tokenizer.huggingface.json"
_MAX_BYTES = 2**27

_BUILDERS: dict[str, Callable[[TokenizerMetadata], Component]] = {
    "bert": word_piece_tokenizer,
    "gemma4": gemma_4_tokenizer,
    "gpt2": byte_level_tokenizer,
    "llama": scored_tokenizer,
    "t5": unigram_tokenizer,
}


def tokenizer_json(metadata: Mapping[str, Any]) -> bytes:
    """tokenizer.json, the file of the tokenizers library.

    metadata: all keys of the GGUF file. Raises ModelError, also for a tokenizer of a kind that is not known here.
    """
    if (whole := metadata.get(_WHOLE)) is not None:
        return _checked(whole)
    read = TokenizerMetadata(metadata)
    builder = _BUILDERS.get(read.model)
    if builder is None:
        raise ModelError(
            f"The GGUF file has a tokenizer of kind '{shorten(read.model)}' ({PREFIX}model), which is not known here. "
            f"{REMEDY}"
        )
    content = msgspec.json.encode(builder(read))
    if len(content) > _MAX_BYTES:
        raise ModelError(
            f"The GGUF file's tokenizer takes {len(content)} bytes as JSON; at most {_MAX_BYTES} are read."
        )
    return content


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: the named tokens, whether they are added to a text, and the chat templates.

    metadata: all keys of the GGUF file. Raises ModelError.
    """
    return tokenizer_config_values(TokenizerMetadata(metadata))


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The tokens that end an answer; none for a file that lists no tokens.

    metadata: all keys of the GGUF file. Raises ModelError.
    """
    return end_tokens(TokenizerMetadata(metadata)) if f"{PREFIX}tokens" in metadata else []


def _checked(whole: Any) -> bytes:
    """A tokenizer.json that the file itself has."""
    try:
        content = whole.encode() if isinstance(whole, str) else b""
        msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (UnicodeEncodeError, msgspec.DecodeError) as error:
        raise ModelError(f"{_WHOLE} in the GGUF file is not a JSON object. {REMEDY}") from error
    return content
