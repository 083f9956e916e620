"""The prompt of a chat: its messages as chat templates take them, rendered and tokenized by the text workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from tessera.engine.truncation import Truncation
from tessera.errors import RequestError
from tessera.media.placement import placed, replacements_of
from tessera.parsing.call_ids import with_known_ids
from tessera.parsing.plain import PlainCalls
from tessera.server.decode import Envelope, asks_for_nothing
from tessera.server.generation.chat import (
    MAX_EFFORT_CHARS,
    MAX_ROLE_CHARS,
    ChatFields,
    ChatMessage,
    ContentPart,
    InputAudio,
    ToolCall,
)
from tessera.server.generation.fields import GenerationFields
from tessera.server.generation.tool_prompts import told
from tessera.server.generation.tools import ToolUse
from tessera.server.media_reader import MediaSource
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits, ServerSettings
from tessera.text.worker import ChatJob

if TYPE_CHECKING:
    from tessera.media.item import ProcessedMedia
    from tessera.media.placed import PlacedMedia
    from tessera.text.workers import TextWorkers

_ASSISTANT = "assistant"
# developer is OpenAI's newer name for the system role, which few templates know; function is the older one of tool.
_RENAMED_ROLES = {"developer": "system", "function": "tool"}
_EFFORTS = ("reasoning_effort", "verbosity")
_MODALITIES: Mapping[str, str] = MappingProxyType(
    {"image_url": "image", "video_url": "video", "input_audio": "audio", "audio_url": "audio"}
)
"""By the type of a part that is not text."""


class TokenizedPrompt(NamedTuple):
    """A prompt that the engine has not checked."""

    token_ids: Sequence[int]
    # None: the client sent token ids or a chat
    text: str | None = None
    # in order of their places
    media: Sequence[PlacedMedia] = ()


def longest_prompt(model: ServedModel) -> int:
    """In tokens."""
    source = model.engine.config.model.source_text
    return model.engine.info.max_model_len if source is None else source.length


def prompt_truncation(model: ServedModel, request: GenerationFields, max_tokens: int | None) -> Truncation | None:
    """What the request keeps of a prompt that is too long; None: all. max_tokens: of the answer. Raises
    RequestError."""
    if request.truncate_prompt_tokens is None and request.truncation_side is None:
        return None
    shares_context = model.engine.config.model.source_text is None
    return Truncation.from_params(
        request.truncate_prompt_tokens,
        request.truncation_side,
        max_model_len=longest_prompt(model),
        max_tokens=(max_tokens or 1) if shares_context else 0,
    )


class RenderedChat(NamedTuple):
    """A chat as the model sees it."""

    prompt: TokenizedPrompt
    # whether the answer begins within reasoning
    reasons: bool
    # the beginning of the answer that is part of the prompt, where reading the answer needs it
    answer_begin: str


def prompt_job(settings: ServerSettings, model: ServedModel, request: ChatFields, use: ToolUse) -> ChatJob:
    """What makes the chat's prompt, as a job of the text workers. Raises RequestError."""
    workers = _workers(model)
    job = _chat_job(settings, model, request)
    if use.format is not None and isinstance(use.format.calls, PlainCalls):
        job.messages = told(job.messages, use.template_tools, model.telling, required=use.required)
        job.tools = None if model.telling.tools else use.template_tools
    else:
        job.tools = use.template_tools
    job.template_kwargs = {**_effort_variables(request, workers.template), **(job.template_kwargs or {})}
    return job


async def render(
    settings: ServerSettings,
    model: ServedModel,
    request: ChatFields,
    use: ToolUse,
    max_tokens: int | None = None,
    *,
    client: str = "",
) -> RenderedChat:
    """Renders and tokenizes the chat. max_tokens: of the answer. client: see client_of(). Raises RequestError,
    TextWorkerError."""
    workers = _workers(model)
    job = prompt_job(settings, model, request, use)
    truncation = prompt_truncation(model, request, max_tokens)
    job.max_tokens = model.engine.info.max_model_len if truncation is None else None
    markers = None if use.format is None else use.format.reasoning
    if markers is not None:
        job.reasoning = (markers.begin, markers.end)
    job.anchor = "" if use.format is None else use.format.prompt_anchor
    media = await show_media(model, request, job, client)
    rendered = await workers.chat(job, client)
    # What the model goes on with is its answer, unless the prompt says otherwise.
    begun = markers is not None and markers.begun and not request.continue_final_message
    reasons = begun if rendered.reasons is None else rendered.reasons
    ids: Sequence[int] = rendered.ids[0]
    ids = ids if truncation is None else truncation.apply(ids)
    places = placed(ids, media, await model.media.ready()) if media and model.media is not None else ()
    prompt = TokenizedPrompt(ids, media=places)
    return RenderedChat(prompt, reasons, rendered.begun)


async def show_media(model: ServedModel, request: ChatFields, job: ChatJob, client: str) -> Sequence[ProcessedMedia]:
    """Reads the images and sounds of a chat, and gives the job the texts that stand for them. Raises RequestError,
    MediaWorkerError."""
    if model.media is None:
        return ()
    media = await model.media.read(_sources(request.messages), client)
    ready = await model.media.ready()
    job.placeholders, job.replacements = ready.placeholders, replacements_of(media, ready)
    return media


def _workers(model: ServedModel) -> TextWorkers:
    """Raises RequestError if there is no tokenizer."""
    if model.text is None:
        raise RequestError("This server has no tokenizer: use /v1/completions with token ids.", param="messages")
    return model.text


class Efforts(Protocol):
    """The fields for how much to reason and to say."""

    reasoning_effort: str | None
    verbosity: str | None


def check_efforts(request: Efforts) -> None:
    """Raises RequestError."""
    for name in _EFFORTS:
        if len(getattr(request, name) or "") > MAX_EFFORT_CHARS:
            raise RequestError(f"{name} has at most {MAX_EFFORT_CHARS} characters.", param=name)


def _effort_variables(request: ChatFields, template: str) -> dict[str, Any]:
    """The template's own variables for how much to reason and to say, where it has any. Raises RequestError."""
    check_efforts(request)
    variables: dict[str, Any] = {}
    for name in _EFFORTS:
        effort = getattr(request, name)
        if effort is not None and name in template:
            variables[name] = effort
    if request.reasoning_effort == "none":
        variables |= {name: False for name in ("enable_thinking", "thinking") if name in template}
    return variables


# ---- messages --------------------------------------------------------------------------------------------------------


def check_chat_sizes(envelope: Envelope, limits: Limits) -> None:
    """Raises RequestError. envelope: must have the fields messages and chat_template_kwargs."""
    _check_message_counts(envelope.raw("messages"), limits)
    if envelope.size("chat_template_kwargs") > limits.template_kwargs_bytes:
        most = limits.template_kwargs_bytes
        raise RequestError(f"chat_template_kwargs must be at most {most} bytes of JSON.", param="chat_template_kwargs")


def _chat_job(settings: ServerSettings, model: ServedModel, chat: ChatFields) -> ChatJob:
    """The chat as a job of the text workers. Raises RequestError."""
    continues = bool(chat.continue_final_message)
    rendered = for_template(chat.messages, () if model.media is None else model.media.modalities)
    if model.format is not None and any("tool_calls" in message or message["role"] == "tool" for message in rendered):
        with_known_ids(rendered, model.format.calls)
    return ChatJob(
        rendered,
        add_generation_prompt=not continues if chat.add_generation_prompt is None else chat.add_generation_prompt,
        continue_final_message=continues,
        template_kwargs={**settings.chat_template_kwargs, **(chat.chat_template_kwargs or {})},
        max_chars=settings.limits.prompt_chars,
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


def for_template(messages: Sequence[ChatMessage], modalities: Collection[str] = ()) -> list[dict[str, Any]]:
    """The messages as chat templates take them. modalities: what they may have beside text. Raises RequestError, which
    names the field."""
    if not messages:
        raise RequestError("messages must have at least one message.", param="messages")
    return [_message(message, f"messages[{index}]", modalities) for index, message in enumerate(messages)]


def _sources(messages: Sequence[ChatMessage]) -> list[MediaSource]:
    """The images and sounds of messages that for_template() takes."""
    return media_of(
        [part for message in messages if not isinstance(message.content, str) for part in message.content or ()]
    )


def media_of(parts: Sequence[ContentPart]) -> list[MediaSource]:
    """The images and sounds among parts that have what their type says."""
    return [_source(part) for part in parts if part.type in _MODALITIES]


def _source(part: ContentPart) -> MediaSource:
    value = getattr(part, part.type)
    if isinstance(value, InputAudio):
        return MediaSource(_MODALITIES[part.type], data=value.data)
    return MediaSource(_MODALITIES[part.type], value if isinstance(value, str) else value.url)


def echoed(messages: Sequence[ChatMessage]) -> str:
    """The text of the last message if it is the assistant's, which `echo` puts in front of the answer."""
    if messages[-1].role != _ASSISTANT:
        return ""
    content = _content(messages[-1], f"messages[{len(messages) - 1}].content", ()) or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _message(message: ChatMessage, place: str, modalities: Collection[str]) -> dict[str, Any]:
    if not 1 <= len(message.role) <= MAX_ROLE_CHARS:
        raise RequestError(f"{place}.role must have 1 to {MAX_ROLE_CHARS} characters.", param=f"{place}.role")
    if message.content is None and message.role != _ASSISTANT:
        raise RequestError(f"{place}.content is missing.", param=f"{place}.content")
    if message.audio is not None and not asks_for_nothing(bytes(message.audio), ()):
        raise RequestError(f"{place}.audio is not supported yet; remove it.", param=f"{place}.audio")
    calls = message.tool_calls or ([ToolCall(message.function_call)] if message.function_call is not None else None)
    fields = {
        "role": _RENAMED_ROLES.get(message.role, message.role),
        "content": _content(message, f"{place}.content", modalities),
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


def _content(message: ChatMessage, place: str, modalities: Collection[str]) -> list[dict[str, str]] | str | None:
    if message.content is None or isinstance(message.content, str):
        return message.content
    kinds = [kind for kind, modality in _MODALITIES.items() if modality in modalities]
    readable = ("text", "refusal") if message.role == _ASSISTANT else ("text", *kinds)
    return [_part(part, f"{place}[{index}]", readable) for index, part in enumerate(message.content)] or ""


def _part(part: ContentPart, place: str, readable: Sequence[str]) -> dict[str, str]:
    """A part as a template takes it. readable: the types of parts that may be."""
    if part.type not in readable:
        where = f"{place}.type"
        kinds = " and ".join(kind for kind in readable if kind != "refusal")
        raise RequestError(f"{where} is {part.type[:40]!r}: only {kinds} parts are supported.", param=where)
    value = getattr(part, part.type)
    if value is None:
        raise RequestError(f"{place}.{part.type} is missing.", param=f"{place}.{part.type}")
    modality = _MODALITIES.get(part.type)
    return {"type": "text", "text": value} if modality is None else {"type": modality}
