"""The `prompt` of a completions request: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.openai.decode import decoded
from tessera.server.openai.generation import Prompt
from tessera.server.settings import Limits

_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[int])
_IDS_LISTS = msgspec.json.Decoder(list[list[int]])


async def read_prompts(context: ServerContext, raw: msgspec.Raw, add_special_tokens: bool) -> list[Prompt]:
    """Raises RequestError, TextWorkerError. raw: the field's JSON."""
    texts, ids = decode_prompt(bytes(raw), context.settings.limits)
    if ids:
        return [Prompt(prompt) for prompt in ids]
    return await tokenize(context, texts, add_special_tokens)


def check_counts(raw: bytes, limits: Limits, max_model_len: int) -> None:
    """Raises RequestError. Counts in the undecoded JSON, so that nothing is built of too much."""
    kind = _kind(raw)
    if kind == "texts":
        # An escaped quote is none; `\\"` is taken for one, so this counts no more than there are.
        _check_count((raw.count(b'"') - raw.count(b'\\"')) // 2, limits.prompts)
    elif kind == "ids lists":
        _check_count(raw.count(b"[") - 1, limits.prompts)
        _check_tokens(raw, max_model_len, limits.prompts)
    elif kind == "ids":
        _check_tokens(raw, max_model_len, 1)


def decode_prompt(raw: bytes, limits: Limits) -> tuple[list[str], list[list[int]]]:
    """Texts, or lists of token ids. Raises RequestError."""
    kind = _kind(raw)
    texts: list[str] = []
    ids: list[list[int]] = []
    if kind == "text":
        texts = [decoded(_TEXT, raw, "prompt")]
    elif kind == "texts":
        texts = decoded(_TEXTS, raw, "prompt")
    elif kind == "ids lists":
        ids = decoded(_IDS_LISTS, raw, "prompt")
    elif kind == "ids":
        ids = [decoded(_IDS, raw, "prompt")]
    else:
        raise RequestError("prompt must be a text, texts, token ids or lists of token ids, not empty.", param="prompt")
    _check_count(len(texts) or len(ids), limits.prompts)
    if not all(texts) or not all(ids):
        raise RequestError("A prompt is empty: it must have at least one character or token.", param="prompt")
    return texts, ids


def _kind(raw: bytes) -> Literal["text", "texts", "ids", "ids lists"] | None:
    """What a prompt's JSON starts like; None for what is no prompt, or an empty list."""
    if raw[:1] == b'"':
        return "text"
    if raw[:1] != b"[":
        return None
    match raw[1:64].lstrip()[:1]:
        case b'"':
            return "texts"
        case b"[":
            return "ids lists"
        case b"" | b"]":
            return None
        case _:
            return "ids"


async def tokenize(context: ServerContext, texts: Sequence[str], add_special_tokens: bool) -> list[Prompt]:
    workers = context.engine.text
    if workers is None:
        raise RequestError("There is no tokenizer here: give the prompt as token ids.", param="prompt")
    most = context.settings.limits.prompt_chars
    if any(len(text) > most for text in texts):
        raise RequestError(f"A prompt has at most {most} characters.", param="prompt")
    max_model_len = context.engine.info.max_model_len
    tokens = await workers.encode(texts, add_special_tokens, max_tokens=max_model_len)
    return [Prompt(ids, text) for ids, text in zip(tokens, texts, strict=True)]


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise RequestError(f"prompt holds at most {most} prompts, got {count}.", param="prompt")


def _check_tokens(raw: bytes, max_model_len: int, prompts: int) -> None:
    count = raw.count(b",") + 1
    if count > max_model_len * prompts:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {count} tokens.",
            param="prompt",
            code="context_length_exceeded",
        )
