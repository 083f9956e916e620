"""The request and response bodies of Anthropic's routes (https://docs.claude.com/en/api/messages), as msgspec structs.

Unknown fields of a request are ignored, `cache_control` among them: prefixes are cached without being told.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tessera import sampling_params as most
from tessera.server.openapi import field_schema
from tessera.server.settings import Limits

Block = dict[str, Any]
_TEXT_OR_BLOCKS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}


class MessageParam(msgspec.Struct):
    """role: user, assistant, or system for what the application says later. content: a text, or blocks of the types
    text, tool_use, tool_result and thinking."""

    role: str
    content: Annotated[str | list[Block], field_schema(**_TEXT_OR_BLOCKS)]


class ToolParam(msgspec.Struct):
    name: str
    input_schema: dict[str, Any] | UnsetType = UNSET
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: str
    budget_tokens: int | None = None


class Metadata(msgspec.Struct):
    user_id: str | None = None


class OutputFormat(msgspec.Struct):
    """strict: as in response_format; Anthropic's API has no such field."""

    type: str
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class OutputConfig(msgspec.Struct):
    format: OutputFormat | None = None
    effort: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """A chat whose prompt is counted. null is the same as leaving a field out."""

    messages: Annotated[list[MessageParam], field_schema(minItems=1, maxItems=Limits.messages)]
    model: str | None = None
    system: Annotated[str | list[Block], field_schema(**_TEXT_OR_BLOCKS)] | None = None
    tools: Annotated[list[ToolParam], field_schema(maxItems=Limits.tools)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A chat to answer. null is the same as leaving a field out."""

    max_tokens: Annotated[int, field_schema(minimum=1)]
    stream: bool | None = None
    temperature: Annotated[float, field_schema(minimum=0)] | None = None
    top_p: Annotated[float, field_schema(exclusiveMinimum=0, maximum=1)] | None = None
    top_k: Annotated[int, field_schema(minimum=0)] | None = None
    stop_sequences: Annotated[list[str], field_schema(maxItems=most.MAX_STOPS)] | None = None
    metadata: Metadata | None = None
    output_format: OutputFormat | None = None


# ---- answers ---------------------------------------------------------------------------------------------------------


class TextBlock(msgspec.Struct, tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    """signature: empty, because reasoning is not signed here."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class Usage(msgspec.Struct):
    """input_tokens: those that were not in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class AnswerMessage(msgspec.Struct, kw_only=True):
    id: str
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage
    type: str = "message"
    role: str = "assistant"


class TokenCount(msgspec.Struct):
    input_tokens: int
