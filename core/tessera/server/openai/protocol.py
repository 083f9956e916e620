"""The request and response bodies of OpenAI's routes, as msgspec structs.

Unknown fields of a request are ignored, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tessera.server.assembly import Large
from tessera.server.generation.chat import ChatFields, ToolCall
from tessera.server.generation.fields import GenerationFields, NumLogprobs, PositiveInt
from tessera.server.generation.logprobs import TokenLogprob
from tessera.server.generation.usage import TokenUsage
from tessera.server.prompt_field import prompt_schema
from tessera.server.settings import Limits

# ---- requests --------------------------------------------------------------------------------------------------------


class CompletionRequest(GenerationFields, kw_only=True):
    """Prompts to complete: a text, token ids, or a list of either. null is the same as leaving a field out."""

    prompt: Annotated[Raw, prompt_schema(Limits.prompts)]
    echo: bool | None = None
    logprobs: NumLogprobs | None = None
    best_of: PositiveInt | None = None
    suffix: str | None = None


class ChatCompletionRequest(ChatFields, kw_only=True):
    """A chat to answer. null is the same as leaving a field out."""

    echo: bool | None = None
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

    @classmethod
    def from_tokens(cls, tokens: TokenUsage) -> Usage:
        details = PromptTokensDetails(tokens.num_cached_tokens)
        usage = cls(tokens.num_prompt_tokens, tokens.num_output_tokens, tokens.num_tokens, details)
        if tokens.num_reasoning_tokens is not None:
            usage.completion_tokens_details = CompletionTokensDetails(tokens.num_reasoning_tokens)
        return usage


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
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET
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
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET


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


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    created: int
    root: str
    max_model_len: int
    permission: list[ModelPermission]
    # what it can be asked for: generate, or those of PoolingTask
    tasks: list[str]
    # those of classify, in the order of its probabilities
    labels: list[str] | UnsetType = UNSET
    # what prompts may hold: text, image and the like
    input_modalities: list[str]
    object: str = "model"
    owned_by: str = "tessera"
    parent: str | None = None


class ModelList(msgspec.Struct, kw_only=True):
    data: list[ModelCard]
    object: str = "list"
