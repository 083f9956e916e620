"""The request and response bodies of OpenAI's routes, as msgspec structs.

Unknown fields of a request are ignored, and counted. The limits are here only for the OpenAPI document. Values are
checked where these numbers come from (tessera/sampling_params.py, settings.py), with clearer errors than msgspec's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from tessera import sampling_params as most
from tessera.engine.beam_search import MAX_PENALTY
from tessera.parsing.calls import MAX_NAME_CHARS
from tessera.parsing.custom import arguments_of, parameters
from tessera.parsing.response import Call
from tessera.server.assembly import Large
from tessera.server.settings import Limits


def shown(**schema: Any) -> Meta:
    """Adds to a field's JSON schema without changing how the field is decoded."""
    return Meta(extra_json_schema=schema)


_Salt = Annotated[str, shown(maxLength=Limits.salt_chars)]
_Stop = Annotated[str, shown(minLength=1, maxLength=most.MAX_STOP_CHARS)]
_Share = Annotated[float, shown(minimum=0, maximum=1)]
_Penalty = Annotated[float, shown(minimum=-most.MOST_PENALTY, maximum=most.MOST_PENALTY)]
_Length = Annotated[int, shown(minimum=1)]
_Logprobs = Annotated[int, shown(minimum=-1)]
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
_OBJECT_OR_JSON = {"anyOf": [{"type": "object"}, {"type": "string", "maxLength": most.MAX_SCHEMA_CHARS}]}
_STRUCTURED_OUTPUTS = {
    "properties": {
        "choice": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": most.MAX_CHOICE_CHARS},
            "minItems": 1,
            "maxItems": most.MAX_CHOICES,
        },
        "regex": {"type": "string", "minLength": 1, "maxLength": most.MAX_GRAMMAR_CHARS},
        "json": _OBJECT_OR_JSON,
        "json_object": {"type": "boolean"},
        "grammar": {"type": "string", "minLength": 1, "maxLength": most.MAX_GRAMMAR_CHARS},
        "structural_tag": _OBJECT_OR_JSON,
        "disable_any_whitespace": {"type": "boolean"},
        "whitespace_pattern": {"type": "string", "minLength": 1, "maxLength": most.MAX_WHITESPACE_CHARS},
        "disable_additional_properties": {"type": "boolean"},
        "strict": {"type": "boolean"},
    },
    "oneOf": [{"required": [kind]} for kind in most.StructuredOutputsParams.KINDS],
    "additionalProperties": False,
}
_RESPONSE_FORMAT = {
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
        "json_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        },
    },
    "required": ["type"],
}
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
ToolChoice = Annotated[str | dict[str, Any], shown(anyOf=_TOOL_CHOICES)]
Effort = Annotated[str, shown(maxLength=MAX_EFFORT_CHARS)]
_PROMPTS = {"type": "array", "minItems": 1, "maxItems": Limits.prompts}

# ---- requests --------------------------------------------------------------------------------------------------------


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """The fields that chat and completions have in common. null is the same as leaving a field out. model: if it is
    left out, the first name served."""

    model: str | None = None
    n: Annotated[int, shown(minimum=1, maximum=Limits.n)] | None = None
    temperature: Annotated[float, shown(minimum=0)] | None = None
    top_p: Annotated[float, shown(exclusiveMinimum=0, maximum=1)] | None = None
    top_k: Annotated[int, shown(minimum=-1)] | None = None
    min_p: _Share | None = None
    seed: Annotated[int, shown(minimum=most.INTEGERS["seed"][0], maximum=most.INTEGERS["seed"][1])] | None = None
    stop: _Stop | Annotated[list[_Stop], shown(maxItems=most.MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], shown(maxItems=most.MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    max_tokens: Annotated[int, shown(minimum=0)] | None = None
    min_tokens: Annotated[int, shown(minimum=0)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: _Salt | None = None
    prompt_cache_key: _Salt | None = None
    user: _Salt | None = None
    priority: Annotated[int, shown(minimum=-(2**31), maximum=2**31 - 1)] | None = None
    request_id: Annotated[str, shown(minLength=1, maxLength=Limits.request_id_chars)] | None = None
    return_token_ids: bool | None = None
    logprob_token_ids: Annotated[list[int], shown(maxItems=most.MAX_LOGPROB_IDS)] | None = None
    truncate_prompt_tokens: Annotated[int, shown(minimum=-1)] | None = None
    truncation_side: Annotated[str, shown(enum=[*most.TRUNCATION_SIDES])] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, shown(exclusiveMinimum=0, maximum=most.MOST_REPETITION)] | None = None
    logit_bias: Annotated[dict[str, float], shown(maxProperties=most.MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[int], shown(minItems=1, maxItems=most.MAX_ALLOWED_IDS)] | None = None
    bad_words: Annotated[list[str], shown(maxItems=most.MAX_BAD_WORDS)] | None = None
    prompt_logprobs: _Logprobs | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: _Length | None = None
    return_tokens_as_token_ids: bool | None = None
    structured_outputs: Annotated[dict[str, Any], shown(**_STRUCTURED_OUTPUTS)] | None = None
    response_format: Annotated[dict[str, Any], shown(**_RESPONSE_FORMAT)] | None = None
    vllm_xargs: Annotated[dict[str, Any], shown(maxProperties=most.MAX_EXTRA_ARGS)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, shown(minimum=-MAX_PENALTY, maximum=MAX_PENALTY)] | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    """Prompts to complete: a text, token ids, or a list of either. null is the same as leaving a field out."""

    prompt: Annotated[Raw, shown(anyOf=[_TEXT, _IDS, {**_PROMPTS, "items": _TEXT}, {**_PROMPTS, "items": _IDS}])]
    echo: bool | None = None
    logprobs: _Logprobs | None = None
    best_of: _Length | None = None
    suffix: str | None = None


class ContentPart(msgspec.Struct):
    """type: text, or in an assistant's message also refusal."""

    type: str
    text: str | None = None
    refusal: str | None = None


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
    def of(cls, call: Call) -> ToolCall:
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

    name: Annotated[str, shown(minLength=1, maxLength=MAX_NAME_CHARS)]
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class CustomSpec(msgspec.Struct):
    """A tool that takes a text. format: {"type": "text"}, or {"type": "grammar", "grammar": {"syntax": "lark" or
    "regex", "definition": ...}}, which the text then follows."""

    name: Annotated[str, shown(minLength=1, maxLength=MAX_NAME_CHARS)]
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

    role: Annotated[str, shown(minLength=1, maxLength=MAX_ROLE_CHARS)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: Raw | None = None
    function_call: FunctionCall | None = None


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """A chat to answer. null is the same as leaving a field out."""

    messages: Annotated[list[ChatMessage], shown(minItems=1, maxItems=Limits.messages)]
    echo: bool | None = None
    max_completion_tokens: _Length | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[ToolSpec], shown(maxItems=Limits.tools)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, shown(minimum=0)] | None = None
    verbosity: Effort | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None


# ---- answers ---------------------------------------------------------------------------------------------------------


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Large):
    content: list[TokenLogprob]


class CompletionLogprobs(Large):
    """Parallel lists with an entry for each token; null for a prompt's first token, which has no log probability.

    text_offset: characters from the start of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, gc=False):
    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""An entry for each token of the prompt: log probabilities by token id. None for the first token."""


class AnswerMessage(msgspec.Struct):
    """reasoning: that of a model that has any; reasoning_content is its older name."""

    content: str | None
    role: str = "assistant"
    refusal: str | None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET


class ChatChoice(Large, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(Large, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None = None


class ChatCompletion(Large, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    object: str = "chat.completion"
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None = None


class Completion(Large, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    object: str = "text_completion"


class ModelPermission(msgspec.Struct, kw_only=True):
    """No longer part of OpenAI's API, but clients of vLLM still read it."""

    id: str
    created: int
    object: str = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class Model(msgspec.Struct, kw_only=True):
    id: str
    created: int
    root: str
    max_model_len: int
    permission: list[ModelPermission]
    object: str = "model"
    owned_by: str = "tessera"
    parent: str | None = None


class ModelList(msgspec.Struct, kw_only=True):
    data: list[Model]
    object: str = "list"
