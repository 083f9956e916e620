"""Turns a request of Anthropic's API into the chat that the other routes know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET

from tessera.errors import RequestError
from tessera.server.anthropic.call_ids import check_call_ids
from tessera.server.anthropic.protocol import Block, CountTokensRequest, MessageParam, MessagesRequest, ToolParam
from tessera.server.context import ServerContext
from tessera.server.generation.chat import (
    ChatFields,
    ChatMessage,
    ContentPart,
    FunctionCall,
    FunctionSpec,
    ToolCall,
    ToolSpec,
)
from tessera.server.generation.tools import UNSEEN

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(context: ServerContext, request: CountTokensRequest) -> ChatFields:
    """Raises RequestError."""
    reader = context.model(request.model).media
    images = reader is not None and "image" in reader.modalities
    chat = ChatFields(model=request.model, messages=[*_system(request), *_messages(request.messages, images)])
    if request.messages and request.messages[-1].role == "assistant":
        _continue(chat, f"messages[{len(request.messages) - 1}]")
    if request.tools:
        chat.tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools)]
    if request.tool_choice is not None:
        chat.tool_choice = _choice(request)
        chat.parallel_tool_calls = not request.tool_choice.disable_parallel_tool_use
    _think(context, request, chat)
    if request.output_config is not None and chat.reasoning_effort is None:
        chat.reasoning_effort = request.output_config.effort
    return chat


def whole_chat_of(context: ServerContext, request: MessagesRequest) -> ChatFields:
    """Raises RequestError."""
    check_call_ids(request.messages)
    chat = chat_of(context, request)
    chat.max_tokens, chat.stream = request.max_tokens, request.stream
    chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
    chat.stop = request.stop_sequences or None
    if request.metadata is not None and request.metadata.user_id:
        chat.user = request.metadata.user_id[: context.settings.limits.salt_chars]
    config = request.output_config
    wanted = request.output_format if config is None or config.format is None else config.format
    if wanted is not None:
        place = "output_format" if config is None or config.format is None else "output_config.format"
        if wanted.type != "json_schema" or wanted.schema is None:
            raise RequestError(f"{place} must have the type json_schema and a schema.", param=place)
        answer = {"name": "answer", "schema": wanted.schema, "strict": wanted.strict}
        chat.response_format = {"type": "json_schema", "json_schema": answer}
    return chat


def _think(context: ServerContext, request: CountTokensRequest, chat: ChatFields) -> None:
    """A model without reasoning has none to limit: clients send `thinking` to every model."""
    thinking = request.thinking
    if thinking is None:
        return
    written = context.model(request.model).format
    if written is None or written.reasoning is None:
        return
    if thinking.type == "disabled":
        chat.reasoning_effort = "none"
    elif thinking.budget_tokens is not None:
        chat.thinking_token_budget = thinking.budget_tokens


def _tool(tool: ToolParam, place: str) -> ToolSpec:
    if tool.type not in (None, "custom") or tool.input_schema is UNSET:
        raise RequestError(
            f"{place} is not a tool with an input_schema; Anthropic's own tools are not served.", param=place
        )
    description = UNSET if tool.description is None else tool.description
    return ToolSpec("function", FunctionSpec(tool.name, description, tool.input_schema, tool.strict))


def _choice(request: CountTokensRequest) -> str | dict[str, Any]:
    choice = request.tool_choice
    assert choice is not None
    if choice.type == "tool" and choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _CHOICES:
        raise RequestError("tool_choice.type must be auto, any, none, or tool with a name.", param="tool_choice.type")
    return _CHOICES[choice.type] if request.tools else "none"


# ---- messages --------------------------------------------------------------------------------------------------------


def _system(request: CountTokensRequest) -> Iterator[ChatMessage]:
    if request.system:
        yield ChatMessage("system", _texts(request.system, "system"))


def _messages(messages: Sequence[MessageParam], images: bool) -> Iterator[ChatMessage]:
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if message.role not in ("user", "assistant", "system"):
            raise RequestError(f"{place}.role must be user, assistant or system.", param=f"{place}.role")
        if isinstance(message.content, str):
            yield ChatMessage(message.role, message.content)
        elif message.role == "system":
            yield ChatMessage("system", _texts(message.content, f"{place}.content"))
        elif message.role == "user":
            yield from _of_user(message.content, f"{place}.content", images)
        else:
            yield _of_assistant(message.content, f"{place}.content")


def _of_user(blocks: Sequence[Block], place: str, images: bool) -> Iterator[ChatMessage]:
    """The results of tools, each a message of its own, and then the rest. images: whether the model takes any."""
    parts: list[ContentPart] = []
    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        match block:
            case {"type": "text", "text": str(text)}:
                parts.append(ContentPart("text", text))
            case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}} if images:
                parts.append(ContentPart("image_url", image_url=f"data:{kind};base64,{data}"))
            case {"type": "image", "source": {"type": "url", "url": str(url)}} if images:
                parts.append(ContentPart("image_url", image_url=url))
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                content = block.get("content") or ""
                yield ChatMessage("tool", _texts(content, f"{where}.content", UNSEEN), tool_call_id=call_id)
            case _:
                raise _unserved(block, where)
    if parts:
        yield ChatMessage("user", parts)


def _of_assistant(blocks: Sequence[Block], place: str) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(text)}:
                thoughts.append(text)
            case {"type": "redacted_thinking"}:
                pass  # of another server: there is nothing to read
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": given}:
                calls.append(ToolCall(FunctionCall(name, msgspec.json.encode(given).decode()), call_id))
            case _:
                raise _unserved(block, f"{place}[{index}]")
    message = ChatMessage("assistant", "".join(texts) or None, tool_calls=calls or None)
    message.reasoning = "".join(thoughts) or None
    return message


def _continue(chat: ChatFields, place: str) -> None:
    """The answer goes on with the last message, which is the assistant's; one that says nothing is left out. Raises
    RequestError."""
    last = chat.messages[-1]
    if last.tool_calls:  # their results are missing, which only matters to what is answered
        return
    if last.reasoning and not last.content:
        raise RequestError(f"{place} has no text that the answer could continue.", param=place)
    if not last.content:
        if len(chat.messages) > 1:
            chat.messages.pop()
        return
    assert isinstance(last.content, str)
    if last.content != last.content.rstrip():
        # As in Anthropic's API: models begin words with the space before them.
        raise RequestError(
            f"{place}.content must not end with white space, because the answer continues it.", param=place
        )
    chat.continue_final_message = True


def _texts(content: Any, place: str, instead: Mapping[str, str] = MappingProxyType({})) -> str:
    """The texts of blocks, joined. instead: texts in place of other blocks, by their types."""
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": str(kind)} if kind in instead:
                texts.append(instead[kind])
            case _:
                raise _unserved(block, f"{place}[{index}]")
    return "\n".join(texts)


def _unserved(block: Any, place: str) -> RequestError:
    kind = block.get("type") if isinstance(block, dict) else None
    known = (
        kind if kind in ("image", "document", "search_result", "server_tool_use", "web_search_tool_result") else None
    )
    said = f"is of the type {known}, which is not supported" if known else "is no block of a type that belongs here"
    return RequestError(f"{place} {said}.", param=place)
