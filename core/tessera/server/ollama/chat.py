"""Turns a request of Ollama's API into the chat that the other routes know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UnsetType

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.decode import decoded
from tessera.server.generation.chat import ChatFields
from tessera.server.ollama.protocol import ChatRequest, GenerateRequest, OllamaMessage, OllamaRequest

LATEST = ":latest"
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "num_predict": "max_tokens",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_CHANGING = {"mirostat": 0, "typical_p": 1.0, "tfs_z": 1.0}
"""Options that change the answer and are not served, with the value that changes nothing."""
_request = msgspec.json.Decoder(ChatFields)


def of_chat(context: ServerContext, request: ChatRequest) -> ChatFields:
    """Raises RequestError."""
    fields: dict[str, Any] = {"messages": _messages(context, request)}
    if request.tools:
        fields["tools"] = request.tools
    return _chat(context, request, fields)


def of_prompt(context: ServerContext, request: GenerateRequest) -> ChatFields:
    """Raises RequestError."""
    if request.raw:
        raise RequestError("raw is not supported here; use /v1/completions.", param="raw")
    system = [{"role": "system", "content": request.system}] if request.system else []
    content = _content(context, request.model, request.prompt, request.images, "images")
    return _chat(context, request, {"messages": [*system, {"role": "user", "content": content}]})


def name_of(context: ServerContext, name: str) -> str:
    """The served name that is meant: Ollama's tools add a tag."""
    return name if name in context.models else name.removesuffix(LATEST)


def _chat(context: ServerContext, request: OllamaRequest, fields: dict[str, Any]) -> ChatFields:
    """By way of the JSON that a client of the other API would send, so that the same checks are made."""
    fields |= {
        "model": name_of(context, request.model),
        "stream": request.stream is not False,
        **_options(request.options or {}),
    }
    if request.think is not None:
        fields["reasoning_effort"] = (
            request.think if isinstance(request.think, str) else None if request.think else "none"
        )
    if request.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(request.format, dict):
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": request.format}}
    elif request.format:
        raise RequestError("format must be json or a JSON Schema.", param="format")
    return decoded(_request, msgspec.json.encode(fields))


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, nothing in _CHANGING.items():
        if options.get(name, nothing) != nothing:
            raise RequestError(f"options.{name} is not supported; remove it.", param=f"options.{name}")
    found = {own: options[name] for name, own in _OPTIONS.items() if options.get(name) is not None}
    if found.get("max_tokens") in (-1, -2):  # as long as it likes
        del found["max_tokens"]
    return found


def _content(
    context: ServerContext, model: str, text: str, images: Sequence[str] | UnsetType | None, place: str
) -> str | list[dict[str, Any]]:
    """A message's content: its images, which are base64, come before its text. Raises RequestError."""
    if isinstance(images, UnsetType) or not images:
        return text
    reader = context.model(name_of(context, model)).media
    if reader is None or "image" not in reader.modalities:
        raise RequestError(f"{place} are not supported.", param=place)
    urls = [f"data:application/octet-stream;base64,{image}" for image in images]
    return [*({"type": "image_url", "image_url": url} for url in urls), {"type": "text", "text": text}]


def _messages(context: ServerContext, request: ChatRequest) -> list[dict[str, Any]]:
    """Results of tools belong to the calls before them, by the names of the tools or in order: Ollama's messages have
    no ids."""
    found: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []
    for index, message in enumerate(request.messages):
        content = _content(context, request.model, message.content, message.images, f"messages[{index}].images")
        one: dict[str, Any] = {"role": message.role, "content": content}
        if not isinstance(message.thinking, UnsetType):
            one["reasoning"] = message.thinking
        if not isinstance(message.tool_calls, UnsetType):
            one["tool_calls"] = [_call(index, number, message) for number in range(len(message.tool_calls))]
            waiting = [(call["function"]["name"], call["id"]) for call in one["tool_calls"]]
        elif message.role == "tool" and waiting:
            answered = next((call for call in waiting if call[0] == message.tool_name), waiting[0])
            waiting.remove(answered)
            one["tool_call_id"] = answered[1]
        found.append(one)
    return found


def _call(index: int, number: int, message: OllamaMessage) -> dict[str, Any]:
    assert not isinstance(message.tool_calls, UnsetType)
    function = message.tool_calls[number].function
    arguments = msgspec.json.encode(function.arguments).decode()
    return {
        "id": f"call_{index}_{number}",
        "type": "function",
        "function": {"name": function.name, "arguments": arguments},
    }
