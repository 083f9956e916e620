"""The prompts of a completion: texts and lists of token ids, which become token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec

from tessera.engine.truncation import Truncation
from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.decode import LONG_BODY, Envelope, asks_for_nothing, decoded
from tessera.server.generation.prompt import TokenizedPrompt
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits

_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[int])
_LISTS = msgspec.json.Decoder(list[msgspec.Raw])


async def read_prompts(
    context: ServerContext,
    model: ServedModel,
    raw: msgspec.Raw,
    add_special_tokens: bool,
    *,
    truncation: Truncation | None = None,
    wrap: Callable[[str], str] | None = None,
    client: str = "",
) -> list[TokenizedPrompt]:
    """Decodes a prompt field and tokenizes its texts. raw: its JSON. client: see client_of(). wrap: makes the prompt of
    a text. Raises RequestError, TextWorkerError."""
    limits = context.settings.limits
    if len(memoryview(raw)) < LONG_BODY:
        texts, ids = decode_prompt(bytes(raw), limits)
    else:
        texts, ids = await context.assembly.run(partial(decode_prompt, bytes(raw), limits))
    if wrap is not None and ids:
        raise RequestError("suffix needs a prompt that is a text.", param="suffix")
    prompts = [TokenizedPrompt(prompt) for prompt in ids]
    if texts:
        texts = texts if wrap is None else [wrap(text) for text in texts]
        prompts = await tokenize(
            context.settings.limits, model, texts, add_special_tokens, whole=truncation is None, client=client
        )
    return prompts if truncation is None else [_truncated(prompt, truncation) for prompt in prompts]


def _truncated(prompt: TokenizedPrompt, truncation: Truncation) -> TokenizedPrompt:
    kept = truncation.apply(prompt.token_ids)
    return prompt if len(kept) == len(prompt.token_ids) else TokenizedPrompt(kept)


def check_prompt_counts(envelope: Envelope, limits: Limits, max_model_len: int) -> None:
    """Raises RequestError for too many prompts or tokens. Counts in the JSON, so that they are never decoded. envelope:
    must have the fields prompt and truncate_prompt_tokens."""
    raw, truncates = envelope.raw("prompt"), envelope.raw("truncate_prompt_tokens")
    if truncates and not asks_for_nothing(truncates, ()):
        max_model_len = max(max_model_len, limits.detokenize_tokens)
    kind = _kind(raw)
    if kind == "texts":
        # Escaped quotes are not counted. `\\"` is taken for one, so the count may be too low but never too high.
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
        # One by one: decoding holds the interpreter's lock, which the event loop gets in between.
        lists = decoded(_LISTS, raw, "prompt")
        ids = [decoded(_IDS, bytes(own), f"prompt[{index}]") for index, own in enumerate(lists)]
    elif kind == "ids":
        ids = [decoded(_IDS, raw, "prompt")]
    else:
        raise RequestError("prompt must be a string, token ids, or a list of either, and not empty.", param="prompt")
    _check_count(len(texts) or len(ids), limits.prompts)
    if not all(texts) or not all(ids):
        raise RequestError("A prompt must have at least one character or token.", param="prompt")
    return texts, ids


def _kind(raw: bytes) -> Literal["text", "texts", "ids", "ids lists"] | None:
    """The kind of prompt, as the start of its JSON shows; None for an empty list and for a value of the wrong type."""
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


async def tokenize(
    limits: Limits,
    model: ServedModel,
    texts: Sequence[str],
    add_special_tokens: bool,
    *,
    whole: bool = True,
    client: str = "",
) -> list[TokenizedPrompt]:
    """whole: a text has to fit in the context. Raises RequestError, TextWorkerError."""
    workers = model.text
    if workers is None:
        raise RequestError("This server has no tokenizer: send the prompt as token ids.", param="prompt")
    most = limits.prompt_chars
    if any(len(text) > most for text in texts):
        raise RequestError(f"A prompt must be at most {most} characters long.", param="prompt")
    max_tokens = model.engine.info.max_model_len if whole else None
    tokens = await workers.encode(texts, add_special_tokens, max_tokens=max_tokens, owner=client)
    return [TokenizedPrompt(ids, text) for ids, text in zip(tokens, texts, strict=True)]


def _check_count(count: int, limit: int) -> None:
    if count > limit:
        raise RequestError(f"prompt must have at most {limit} prompts, got {count}.", param="prompt")


def _check_tokens(raw: bytes, max_model_len: int, prompts: int) -> None:
    count = raw.count(b",") + 1
    if count > max_model_len * prompts:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {count} tokens.",
            param="prompt",
            code="context_length_exceeded",
        )
