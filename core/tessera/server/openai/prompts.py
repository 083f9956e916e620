"""The input of a request: the `prompt` of a completion, which becomes token ids, and the messages of a chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from tessera.engine.truncation import Truncation
from tessera.errors import RequestError
from tessera.parsing.call_ids import with_known_ids
from tessera.server.context import ServerContext
from tessera.server.openai.decode import LONG_BODY, Envelope, asks_for_nothing, decoded
from tessera.server.openai.generation import Prompt
from tessera.server.openai.protocol import MAX_ROLE_CHARS, ChatMessage, ContentPart, GenerationFields, ToolCall
from tessera.server.settings import Limits
from tessera.text.worker import ChatJob

_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[int])
_LISTS = msgspec.json.Decoder(list[msgspec.Raw])
_ASSISTANT = "assistant"
# developer is OpenAI's newer name for the system role, which few templates know; function is the older one of tool.
_RENAMED_ROLES = {"developer": "system", "function": "tool"}


# ---- the prompt of a completion --------------------------------------------------------------------------------------


async def read_prompts(
    context: ServerContext,
    raw: msgspec.Raw,
    add_special_tokens: bool,
    *,
    truncation: Truncation | None = None,
    wrap: Callable[[str], str] | None = None,
    client: str = "",
) -> list[Prompt]:
    """Decodes a prompt field and tokenizes its texts. raw: its JSON. client: see client_of(). wrap: makes the prompt of
    a text. Raises RequestError, TextWorkerError."""
    limits = context.settings.limits
    if len(memoryview(raw)) < LONG_BODY:
        texts, ids = decode_prompt(bytes(raw), limits)
    else:
        texts, ids = await context.assembly.run(partial(decode_prompt, bytes(raw), limits))
    if wrap is not None and ids:
        raise RequestError("suffix needs a prompt that is a text.", param="suffix")
    prompts = [Prompt(prompt) for prompt in ids]
    if texts:
        texts = texts if wrap is None else [wrap(text) for text in texts]
        prompts = await tokenize(context, texts, add_special_tokens, whole=truncation is None, client=client)
    return prompts if truncation is None else [_truncated(prompt, truncation) for prompt in prompts]


def _truncated(prompt: Prompt, truncation: Truncation) -> Prompt:
    kept = truncation.kept(prompt.token_ids)
    return prompt if len(kept) == len(prompt.token_ids) else Prompt(kept)


def truncation_of(request: GenerationFields, context: ServerContext, max_tokens: int | None) -> Truncation | None:
    """max_tokens: of the answer. Raises RequestError."""
    return Truncation.of(
        request.truncate_prompt_tokens,
        request.truncation_side,
        max_model_len=context.engine.info.max_model_len,
        max_tokens=max_tokens,
    )


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
    context: ServerContext, texts: Sequence[str], add_special_tokens: bool, *, whole: bool = True, client: str = ""
) -> list[Prompt]:
    """whole: a text has to fit in the context. Raises RequestError, TextWorkerError."""
    workers = context.engine.text
    if workers is None:
        raise RequestError("This server has no tokenizer: send the prompt as token ids.", param="prompt")
    most = context.settings.limits.prompt_chars
    if any(len(text) > most for text in texts):
        raise RequestError(f"A prompt must be at most {most} characters long.", param="prompt")
    max_tokens = context.engine.info.max_model_len if whole else None
    tokens = await workers.encode(texts, add_special_tokens, max_tokens=max_tokens, owner=client)
    return [Prompt(ids, text) for ids, text in zip(tokens, texts, strict=True)]


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise RequestError(f"prompt must have at most {most} prompts, got {count}.", param="prompt")


def _check_tokens(raw: bytes, max_model_len: int, prompts: int) -> None:
    count = raw.count(b",") + 1
    if count > max_model_len * prompts:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {count} tokens.",
            param="prompt",
            code="context_length_exceeded",
        )


# ---- the messages of a chat ------------------------------------------------------------------------------------------


class Chat(Protocol):
    """The fields of a request that control how its messages are rendered and tokenized."""

    add_special_tokens: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


def check_chat_sizes(envelope: Envelope, limits: Limits) -> None:
    """Raises RequestError. envelope: must have the fields messages and chat_template_kwargs."""
    _check_message_counts(envelope.raw("messages"), limits)
    if envelope.size("chat_template_kwargs") > limits.template_kwargs_bytes:
        most = limits.template_kwargs_bytes
        raise RequestError(f"chat_template_kwargs must be at most {most} bytes of JSON.", param="chat_template_kwargs")


def chat_job(context: ServerContext, messages: Sequence[ChatMessage], chat: Chat) -> ChatJob:
    """The chat as a job of the text workers. Raises RequestError."""
    continues, rendered = bool(chat.continue_final_message), for_template(messages)
    with_known_ids(rendered, None if context.format is None else context.format.calls)
    return ChatJob(
        rendered,
        add_generation_prompt=not continues if chat.add_generation_prompt is None else chat.add_generation_prompt,
        continue_final_message=continues,
        template_kwargs={**context.settings.chat_template_kwargs, **(chat.chat_template_kwargs or {})},
        max_chars=context.settings.limits.prompt_chars,
        # The template has already added the special tokens.
        add_special_tokens=bool(chat.add_special_tokens),
    )


def _check_message_counts(raw: bytes, limits: Limits) -> None:
    """Raises RequestError.

    Counts in the undecoded JSON. Quotes inside strings are escaped, so these byte strings are keys or whole values.
    """
    for key, most, what in (
        (b'"role"', limits.messages, "messages"),
        (b'"type"', limits.content_parts, "content parts"),
        (b'"arguments"', limits.tool_calls, "tool calls"),
    ):
        if len(raw) >= most * len(key) and raw.count(key) > most:
            raise RequestError(f"messages must have at most {most} {what}.", param="messages")


def for_template(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as chat templates take them. Raises RequestError, which names the field."""
    if not messages:
        raise RequestError("messages must have at least one message.", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def echoed(messages: Sequence[ChatMessage]) -> str:
    """The text of the last message if it is the assistant's, which `echo` puts in front of the answer."""
    if messages[-1].role != _ASSISTANT:
        return ""
    content = _content(messages[-1], f"messages[{len(messages) - 1}].content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _message(message: ChatMessage, place: str) -> dict[str, Any]:
    if not 1 <= len(message.role) <= MAX_ROLE_CHARS:
        raise RequestError(f"{place}.role must have 1 to {MAX_ROLE_CHARS} characters.", param=f"{place}.role")
    if message.content is None and message.role != _ASSISTANT:
        raise RequestError(f"{place}.content is missing.", param=f"{place}.content")
    if message.audio is not None and not asks_for_nothing(bytes(message.audio), ()):
        raise RequestError(f"{place}.audio is not supported yet; remove it.", param=f"{place}.audio")
    calls = message.tool_calls or ([ToolCall(message.function_call)] if message.function_call is not None else None)
    fields = {
        "role": _RENAMED_ROLES.get(message.role, message.role),
        "content": _content(message, f"{place}.content"),
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": _calls(calls, f"{place}.tool_calls") if calls else None,
        "reasoning_content": message.reasoning if message.reasoning is not None else message.reasoning_content,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _calls(calls: Sequence[ToolCall], place: str) -> list[dict[str, Any]]:
    shown = [call.as_function() for call in calls]
    for index, call in enumerate(shown):
        if call is None:
            raise RequestError(f"{place}[{index}].function is missing.", param=f"{place}[{index}].function")
    found: list[dict[str, Any]] = msgspec.to_builtins(shown)
    return found


def _content(message: ChatMessage, place: str) -> list[dict[str, str]] | str | None:
    if message.content is None or isinstance(message.content, str):
        return message.content
    readable = ("text", "refusal") if message.role == _ASSISTANT else ("text",)
    return [_part(part, f"{place}[{index}]", readable) for index, part in enumerate(message.content)] or ""


def _part(part: ContentPart, place: str, readable: Sequence[str]) -> dict[str, str]:
    """A part as a text. readable: the types of parts that are."""
    if part.type not in readable:
        where = f"{place}.type"
        raise RequestError(f"{where} is {part.type[:40]!r}: only text parts are supported.", param=where)
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise RequestError(f"{place}.{part.type} is missing.", param=f"{place}.{part.type}")
    return {"type": "text", "text": text}
