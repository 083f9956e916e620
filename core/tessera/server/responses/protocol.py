"""The request and response bodies of the Responses API (https://platform.openai.com/docs/api-reference/responses).

Items are JSON objects: they are stored and given back as they are. Unknown fields of a request are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tessera.server.generation.items import Item
from tessera.server.generation.usage import ResponseUsage
from tessera.server.openapi import field_schema
from tessera.server.settings import Limits

_INPUT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "maxItems": Limits.messages}]}


class TextConfig(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class ConversationRef(msgspec.Struct):
    id: str


class InputTokensRequest(msgspec.Struct, kw_only=True):
    """What a response would be made of, to count its tokens. null is the same as leaving a field out."""

    model: str | None = None
    input: Annotated[str | list[Item], field_schema(**_INPUT)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    tools: Annotated[list[dict[str, Any]], field_schema(maxItems=Limits.tools)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    truncation: str | None = None


class ResponsesRequest(InputTokensRequest, kw_only=True):
    """What to respond to. null is the same as leaving a field out. max_tool_calls: of OpenAI's own tools, of which
    there are none here."""

    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: Annotated[int, field_schema(minimum=1)] | None = None
    max_tool_calls: int | None = None
    temperature: Annotated[float, field_schema(minimum=0)] | None = None
    top_p: Annotated[float, field_schema(exclusiveMinimum=0, maximum=1)] | None = None
    top_logprobs: Annotated[int, field_schema(minimum=0)] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    user: Annotated[str, field_schema(maxLength=Limits.salt_chars)] | None = None
    prompt_cache_key: Annotated[str, field_schema(maxLength=Limits.salt_chars)] | None = None


class ResponseError(msgspec.Struct):
    code: str
    message: str


class Response(msgspec.Struct, kw_only=True):
    """status: queued, in_progress, completed, incomplete, failed or cancelled."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[Item]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, Any]
    object: str = "response"
    background: bool = False
    completed_at: int | None = None
    conversation: ConversationRef | None = None
    error: ResponseError | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float | None = None
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: str = "response.input_tokens"


class ConversationRequest(msgspec.Struct):
    items: list[Item] | None = None
    metadata: dict[str, str] | UnsetType | None = UNSET


class Conversation(msgspec.Struct):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: str = "conversation"
