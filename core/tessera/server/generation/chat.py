"""A chat to answer: its messages, tools and other fields, as OpenAI's API has them. Each API turns its requests into
it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tessera.parsing.calls import MAX_NAME_CHARS
from tessera.parsing.custom import arguments_of, parameters
from tessera.parsing.response import ParsedCall
from tessera.server.generation.fields import GenerationFields, NumLogprobs, PositiveInt
from tessera.server.openapi import field_schema
from tessera.server.settings import Limits

MAX_EFFORT_CHARS = 16
MAX_ROLE_CHARS = 64
_TOOL_CHOICES = [
    {"enum": ["none", "auto", "required"]},
    {
        "type": "object",
        "properties": {
            "type": {"enum": ["function", "allowed_tools"]},
            "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
        "required": ["type"],
    },
]
ToolChoice = Annotated[str | dict[str, Any], field_schema(anyOf=_TOOL_CHOICES)]
Effort = Annotated[str, field_schema(maxLength=MAX_EFFORT_CHARS)]


class ImageUrl(msgspec.Struct):
    """url: of http(s), or data:image/png;base64,... detail: accepted; the model's own processor decides on sizes."""

    url: str
    detail: str | None = None


class InputAudio(msgspec.Struct):
    """data: a file in base64. format: wav, mp3, flac, ...; what it is is seen by its bytes."""

    data: str
    format: str = ""


class AudioUrl(msgspec.Struct):
    """url: of http(s), or data:audio/wav;base64,..."""

    url: str


class VideoUrl(msgspec.Struct):
    """url: of http(s), or data:video/mp4;base64,..."""

    url: str


class ContentPart(msgspec.Struct):
    """type: text, image_url where the model takes images, video_url where it takes videos, input_audio or audio_url
    where it takes sounds, or in an assistant's message also refusal."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    input_audio: InputAudio | None = None
    audio_url: AudioUrl | str | None = None
    video_url: VideoUrl | str | None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str = ""


class CustomCall(msgspec.Struct):
    name: str
    input: str = ""


class ToolCall(msgspec.Struct):
    """A call that the model made: earlier in the chat, or now. One of function and custom, as type says."""

    function: FunctionCall | UnsetType = UNSET
    id: str | None = None
    type: str = "function"
    custom: CustomCall | UnsetType = UNSET

    @classmethod
    def from_call(cls, call: ParsedCall) -> ToolCall:
        if call.custom:
            return cls(UNSET, call.id, "custom", CustomCall(call.name, call.arguments))
        return cls(FunctionCall(call.name, call.arguments), call.id)

    def as_function(self) -> ToolCall | None:
        """The call as a model is shown it: that of a custom tool is one of a function. None if it says neither."""
        if not isinstance(self.custom, UnsetType):
            return ToolCall(FunctionCall(self.custom.name, arguments_of(self.custom.input)), self.id)
        return None if isinstance(self.function, UnsetType) else self


class FunctionSpec(msgspec.Struct):
    """A function that the model may call. parameters: a JSON Schema."""

    name: Annotated[str, field_schema(minLength=1, maxLength=MAX_NAME_CHARS)]
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class CustomSpec(msgspec.Struct):
    """A tool that takes a text. format: {"type": "text"}, or {"type": "grammar", "grammar": {"syntax": "lark" or
    "regex", "definition": ...}}, which the text then follows."""

    name: Annotated[str, field_schema(minLength=1, maxLength=MAX_NAME_CHARS)]
    description: str | UnsetType | None = UNSET
    format: dict[str, Any] | None = None


class ToolSpec(msgspec.Struct):
    """type: function or custom."""

    type: str
    function: FunctionSpec | UnsetType = UNSET
    custom: CustomSpec | UnsetType = UNSET

    def as_function(self) -> ToolSpec:
        """The tool as a model is shown it: a custom one is a function that takes a text."""
        if isinstance(self.custom, UnsetType):
            return self
        return ToolSpec("function", FunctionSpec(self.custom.name, self.custom.description, parameters()))


class ChatMessage(msgspec.Struct):
    """role: passed to the chat template, developer as system. function_call: the older form of one of tool_calls."""

    role: Annotated[str, field_schema(minLength=1, maxLength=MAX_ROLE_CHARS)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: Raw | None = None
    function_call: FunctionCall | None = None


class ChatFields(GenerationFields, kw_only=True):
    """A chat to answer, whichever API it came by. null is the same as leaving a field out."""

    messages: Annotated[list[ChatMessage], field_schema(minItems=1, maxItems=Limits.messages)]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[ToolSpec], field_schema(maxItems=Limits.tools)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, field_schema(minimum=0)] | None = None
    verbosity: Effort | None = None
