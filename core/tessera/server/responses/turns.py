"""A turn of the Responses API: what came before it, the chat that it is, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from tessera.errors import NotFoundError, RequestError
from tessera.server.generation.chat import ChatFields, ChatMessage
from tessera.server.generation.items import Item, input_items, messages_of
from tessera.server.responses.call_ids import check_call_ids
from tessera.server.responses.protocol import ConversationRef, InputTokensRequest, ResponsesRequest
from tessera.server.responses.tools import Tools, choice_of
from tessera.server.security import tenant_of
from tessera.server.store import Store, check_metadata

MAX_TURNS = 1000
"""Responses that one may follow, each after another."""


@dataclass
class Turn:
    """items: the turn's own input. before: what came before it."""

    items: list[Item]
    before: list[Item]
    tenant: str
    previous: str | None = None
    conversation: str | None = None

    @classmethod
    async def load(cls, store: Store, request: InputTokensRequest, scope: Scope) -> Turn:
        """Raises RequestError, NotFoundError."""
        tenant, items = tenant_of(scope), input_items(request.input)
        conversation = (
            request.conversation.id if isinstance(request.conversation, ConversationRef) else request.conversation
        )
        if request.previous_response_id is not None and conversation is not None:
            raise RequestError(
                "previous_response_id and conversation cannot be combined: leave out one of them.", param="conversation"
            )
        before: list[Item] = []
        if request.previous_response_id is not None:
            before = await _history(store, request.previous_response_id, tenant)
        elif conversation is not None:
            before = (await conversation_of(store, conversation, tenant))["items"]
        if not items and not before:
            raise RequestError("input is missing.", param="input")
        return cls(items, before, tenant, request.previous_response_id, conversation)


async def _history(store: Store, key: str, tenant: str) -> list[Item]:
    """The items of a response and of those before it. Raises NotFoundError, RequestError."""
    turns: list[list[Item]] = []
    following: str | None = key
    while following is not None:
        kept = await store.get("response", following, tenant)
        if kept is None:
            raise NotFoundError(
                "The previous response does not exist, or is no longer kept.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        turns.append([*kept["input"], *kept["response"]["output"]])
        following = kept["previous"]
        if len(turns) > MAX_TURNS:
            raise RequestError(f"A response follows at most {MAX_TURNS} others.", param="previous_response_id")
    return [item for turn in reversed(turns) for item in turn]


async def conversation_of(store: Store, key: str, tenant: str) -> dict[str, Any]:
    """Raises NotFoundError."""
    kept: dict[str, Any] | None = await store.get("conversation", key[:256], tenant)
    if kept is None:
        raise NotFoundError("The conversation does not exist, or is no longer kept.", param="conversation")
    return kept


def chat_of(request: InputTokensRequest, turn: Turn, tools: Tools) -> ChatFields:
    """Raises RequestError."""
    if request.truncation not in (None, "auto", "disabled"):
        raise RequestError("truncation must be auto or disabled.", param="truncation")
    items = [*turn.before, *turn.items]
    check_call_ids(items)
    messages = messages_with(request.instructions, items)
    chat = ChatFields(model=request.model, messages=messages, tools=tools.specs or None)
    chat.tool_choice, chat.parallel_tool_calls = choice_of(request.tool_choice), request.parallel_tool_calls
    if request.reasoning is not None:
        chat.reasoning_effort = request.reasoning.effort
    if request.text is not None and request.text.format is not None:
        chat.response_format = _format(request.text.format)
    return chat


def messages_with(instructions: str | None, items: Sequence[Item]) -> list[ChatMessage]:
    """Raises RequestError."""
    messages = messages_of(items)
    return [ChatMessage("system", instructions), *messages] if instructions else messages


def whole_chat_of(request: ResponsesRequest, turn: Turn, tools: Tools) -> ChatFields:
    """Raises RequestError."""
    check_metadata(request.metadata)
    chat = chat_of(request, turn, tools)
    chat.max_tokens, chat.temperature, chat.top_p = request.max_output_tokens, request.temperature, request.top_p
    chat.user, chat.prompt_cache_key = request.user, request.prompt_cache_key
    chat.stream = request.stream
    if request.top_logprobs or "message.output_text.logprobs" in (request.include or ()):
        chat.logprobs, chat.top_logprobs = True, request.top_logprobs
    return chat


def _format(text_format: dict[str, Any]) -> dict[str, Any]:
    if text_format.get("type") == "json_schema":
        schema = {key: text_format.get(key) for key in ("name", "schema", "strict")}
        return {"type": "json_schema", "json_schema": schema}
    return text_format
