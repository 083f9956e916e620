"""Filling in the middle: a completion with a `suffix` becomes a prompt with the special tokens that the model was
trained with, in the order prefix, suffix, middle (Bavarian et al., 2022, "Efficient Training of Language Models to Fill
in the Middle")."""

from __future__ import annotations

from collections.abc import Callable

from tessera.errors import RequestError
from tessera.server.openai.protocol import CompletionRequest
from tessera.text import Vocabulary

TOKENS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001  # they are spelled so
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
)
"""The tokens before the prefix, before the suffix and before the middle, of the families that have any."""


def infilled(request: CompletionRequest, vocabulary: Vocabulary | None) -> Callable[[str], str] | None:
    """Puts the text before the gap and the request's suffix into one prompt; None if the request has no suffix. Raises
    RequestError if the model has no tokens for that."""
    if not request.suffix:
        return None
    added = set() if vocabulary is None else set(vocabulary.added_token_texts.values())
    found = next((tokens for tokens in TOKENS if added.issuperset(tokens)), None)
    if found is None:
        raise RequestError(
            "suffix is not supported by this model, whose tokenizer has no tokens to fill in the middle; remove it.",
            param="suffix",
        )
    if request.echo:
        raise RequestError("echo cannot be combined with suffix: leave out one of them.", param="echo")
    before, between, behind = found
    suffix = request.suffix
    return lambda prefix: f"{before}{prefix}{between}{suffix}{behind}"
