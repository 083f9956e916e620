"""Sampling parameters against one model: what names tokens must name tokens it has, texts become token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.errors import RequestError
from tessera.sampling_params import MAX_BAD_WORD_TOKENS, SamplingParams

if TYPE_CHECKING:
    from tessera.config import ModelConfig
    from tessera.text import Tokenizer


def resolved(params: SamplingParams, model: ModelConfig, tokenizer: Tokenizer | None) -> SamplingParams:
    """The parameters as an engine takes them; they themselves where they need nothing. Raises RequestError."""
    vocab = model.vocab_size
    _check_ids("stop_token_ids", params.stop_token_ids or (), vocab)
    _check_ids("logit_bias", params.logit_bias or (), vocab)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab)
    _check_ids("bad_words_ids", (token for word in params.bad_words_ids or () for token in word), vocab)
    changed: dict[str, Any] = {}
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, name)
        if asked is not None:
            check_logprobs(name, asked, model)
        if asked == -1:
            changed[name] = vocab
    if params.bad_words:
        words = [ids for word in params.bad_words for ids in _forms(word, tokenizer)]
        _check_ids("bad_words", (token for word in words for token in word), vocab)
        changed |= {"bad_words": None, "bad_words_ids": (*words, *(params.bad_words_ids or ()))}
    return msgspec.structs.replace(params, **changed) if changed else params


def check_logprobs(name: str, asked: int, model: ModelConfig) -> None:
    """Raises RequestError where more are asked for than --max-logprobs allows; -1 asks for the whole vocabulary."""
    most = model.vocab_size if model.max_logprobs == -1 else model.max_logprobs
    wanted = model.vocab_size if asked == -1 else asked
    if wanted > most:
        raise RequestError(
            f"{name} asks for {wanted} log probabilities a token, but at most {most} are given (--max-logprobs).",
            param=name,
        )


def _check_ids(name: str, ids: Iterable[int], vocab: int) -> None:
    for token in ids:
        if not 0 <= token < vocab:
            raise RequestError(
                f"{name}: token id {token} is out of the vocabulary: ids are 0 to {vocab - 1}.", param=name
            )


def _forms(word: str, tokenizer: Tokenizer | None) -> Iterator[list[int]]:
    """A word's tokens at the start of a text, and after a space where that makes it another single token sequence of
    the same length."""
    if tokenizer is None:
        raise RequestError(
            "There is no tokenizer (skip_tokenizer_init), so bad_words cannot be found; give bad_words_ids.",
            param="bad_words",
        )
    plain, spaced = (tokenizer.encode(space + word.lstrip(), False) for space in ("", " "))
    if not 1 <= len(plain) <= MAX_BAD_WORD_TOKENS:
        raise RequestError(
            f"Each of bad_words must have 1 to {MAX_BAD_WORD_TOKENS} tokens, got {len(plain)}.", param="bad_words"
        )
    yield plain
    if len(spaced) == len(plain) and spaced[0] != plain[0]:
        yield spaced
