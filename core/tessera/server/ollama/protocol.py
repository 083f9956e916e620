"""The request and response bodies of Ollama's routes (https://docs.ollama.com/api), as msgspec structs.

Unknown fields of a request are ignored, `keep_alive` among them: the model is always there.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tessera.server.openapi import field_schema
from tessera.server.settings import Limits


class Function(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}


class Call(msgspec.Struct):
    function: Function


class OllamaMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    images: list[str] | UnsetType = UNSET


class OllamaRequest(msgspec.Struct, kw_only=True):
    """What chats and prompts have in common. stream: true unless it is false."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None


class ChatRequest(OllamaRequest, kw_only=True):
    """A chat to answer."""

    messages: Annotated[list[OllamaMessage], field_schema(minItems=1, maxItems=Limits.messages)]
    tools: Annotated[list[dict[str, Any]], field_schema(maxItems=Limits.tools)] | None = None


class GenerateRequest(OllamaRequest, kw_only=True):
    """A prompt to answer, as the only message of a chat; raw: without the chat template."""

    prompt: str
    images: list[str] | None = None
    system: str | None = None
    raw: bool | None = None


class ShowRequest(msgspec.Struct):
    model: str | None = None
    name: str | None = None


# ---- answers ---------------------------------------------------------------------------------------------------------


class AnswerLine(msgspec.Struct, kw_only=True):
    """A line of an answer. The last one is done, and has its counts; durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class ChatAnswer(AnswerLine, kw_only=True):
    message: OllamaMessage


class GenerateAnswer(AnswerLine, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class Details(msgspec.Struct, kw_only=True):
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    parent_model: str = ""
    format: str = "safetensors"


class Tag(msgspec.Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class Tags(msgspec.Struct):
    models: list[Tag]


class ShownModel(msgspec.Struct, kw_only=True):
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modelfile: str = ""
    parameters: str = ""
    template: str = ""


class VersionAnswer(msgspec.Struct):
    version: str
