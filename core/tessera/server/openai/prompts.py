"""The `prompt` of a completions request: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.openai.decode import decoded
from tessera.server.openai.generation import Prompt

# Shorter texts are tokenized on the event loop: a hop to a thread and back costs more.
INLINE_CHARS = 1024

_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[int])
_IDS_LISTS = msgspec.json.Decoder(list[list[int]])


async def read_prompts(context: ServerContext, raw: msgspec.Raw, add_special_tokens: bool) -> list[Prompt]:
    """Raises RequestError. raw: the field's JSON."""
    texts, ids = decode_prompt(bytes(raw), context)
    if ids:
        return [Prompt(prompt) for prompt in ids]
    if sum(map(len, texts)) <= INLINE_CHARS:
        return tokenize(context, texts, add_special_tokens)
    return await context.in_thread(lambda: tokenize(context, texts, add_special_tokens))


def decode_prompt(raw: bytes, context: ServerContext) -> tuple[list[str], Sequence[list[int]]]:
    """Texts, or lists of token ids.

    Counts are looked at before anything is built of them, where the bytes show them.
    """
    most = context.settings.limits.prompts
    start = raw[1:64].lstrip()[:1] if raw[:1] == b"[" else b""
    texts: list[str] = []
    ids: list[list[int]] = []
    if raw[:1] == b'"':
        texts = [decoded(_TEXT, raw, "prompt")]
    elif start == b'"':
        texts = decoded(_TEXTS, raw, "prompt")
    elif start == b"[":
        _check_count(raw.count(b"[") - 1, most)
        _check_tokens(raw, context, most)
        ids = decoded(_IDS_LISTS, raw, "prompt")
    elif start not in (b"", b"]"):
        _check_tokens(raw, context, 1)
        ids = [decoded(_IDS, raw, "prompt")]
    else:
        raise RequestError("prompt must be a text, texts, token ids or lists of token ids, not empty.", param="prompt")
    _check_count(len(texts) or len(ids), most)
    if not all(texts) or not all(ids):
        raise RequestError("A prompt is empty: it must have at least one character or token.", param="prompt")
    return texts, ids


def tokenize(context: ServerContext, texts: Sequence[str], add_special_tokens: bool) -> list[Prompt]:
    tokenizer = context.engine.tokenizer
    if tokenizer is None:
        raise RequestError("There is no tokenizer here: give the prompt as token ids.", param="prompt")
    most = context.settings.limits.prompt_chars
    if any(len(text) > most for text in texts):
        raise RequestError(f"A prompt has at most {most} characters.", param="prompt")
    max_model_len = context.engine.info.max_model_len
    return [Prompt(tokenizer.encode(text, add_special_tokens, max_tokens=max_model_len), text) for text in texts]


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise RequestError(f"prompt holds at most {most} prompts, got {count}.", param="prompt")


def _check_tokens(raw: bytes, context: ServerContext, prompts: int) -> None:
    most, count = context.engine.info.max_model_len, raw.count(b",") + 1
    if count > most * prompts:
        raise RequestError(
            f"This model's maximum context length is {most} tokens. However, you requested {count} tokens.",
            param="prompt",
            code="context_length_exceeded",
        )
