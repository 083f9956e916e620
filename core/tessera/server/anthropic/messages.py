"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from tessera.parsing.response import CallArguments, CallBegin, Content, Event, Message, Reasoning
from tessera.parsing.values import arguments_of
from tessera.request import CompletionOutput
from tessera.server.anthropic.chat import chat_of, whole_chat_of
from tessera.server.anthropic.errors import EVENTS
from tessera.server.anthropic.protocol import (
    AnswerMessage,
    CountTokensRequest,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    TokenCount,
    ToolUseBlock,
    Usage,
)
from tessera.server.context import ServerContext
from tessera.server.http import json_response, read_body, unless_gone
from tessera.server.openai.chat_run import ChatRun, count_tokens
from tessera.server.openai.decode import RequestDecoder
from tessera.server.openai.generation import GenerationEndpoint
from tessera.server.openapi import EVENT_STREAM, JsonRoute

_encode = msgspec.json.Encoder().encode


def routes(context: ServerContext) -> list[JsonRoute]:
    limits = context.settings.limits
    large = {"messages": limits.body_bytes, "system": limits.body_bytes, "tools": limits.tools_bytes}
    decoder = RequestDecoder(context, MessagesRequest, _NOT_SERVED, large)
    counting = RequestDecoder(context, CountTokensRequest, {}, large)

    async def read(body: bytes, scope: Scope) -> MessagesAnswer:
        asked = await decoder.decode(body)
        chat = whole_chat_of(context, asked)
        return MessagesAnswer(asked, await ChatRun.begin(context, chat, scope, "msg", NAMES))

    answering = GenerationEndpoint(read, context)

    async def messages(_request: Request) -> ASGIApp:
        return answering

    async def count(request: Request) -> Response:
        asked = await counting.decode(await read_body(request.receive))
        counted = count_tokens(context, chat_of(context, asked), request.scope, NAMES)
        return json_response(TokenCount(await unless_gone(request.receive, counted)))

    return [
        JsonRoute(
            "/v1/messages",
            messages,
            "Answers a chat by Anthropic's API, whole or as a stream.",
            methods=("POST",),
            body=MessagesRequest,
            answer=AnswerMessage,
            stream=EVENT_STREAM,
        ),
        JsonRoute(
            "/v1/messages/count_tokens",
            count,
            "Counts the tokens of a chat's prompt.",
            methods=("POST",),
            body=CountTokensRequest,
            answer=TokenCount,
        ),
    ]


NAMES = {
    "response_format.json_schema.schema": "output_config.format.schema",
    ".function.parameters": ".input_schema",
    ".function.": ".",
    "stop": "stop_sequences",
}
"""What errors of a chat are called in a message."""
_NOT_SERVED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],)}


class MessagesAnswer:
    """The answer to one chat, whole or as a stream."""

    wire = EVENTS

    def __init__(self, asked: MessagesRequest, run: ChatRun) -> None:
        self.stream = bool(asked.stream)
        self._run = run

    async def whole(self) -> AnswerMessage:
        return await self._run.whole(self._assembled)

    def _assembled(self, answers: Sequence[tuple[CompletionOutput, Message]]) -> AnswerMessage:
        ((answer, message),) = answers
        return AnswerMessage(
            id=self._run.identity.id,
            model=self._run.identity.model,
            content=list(_blocks(message)),
            stop_reason=self._stop_reason(answer, called=bool(message.calls)),
            stop_sequence=_stop_sequence(answer),
            usage=self._usage(),
        )

    def _usage(self) -> Usage:
        usage = self._run.generation.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return Usage(usage.prompt_tokens - cached, usage.completion_tokens, cached)

    def _stop_reason(self, answer: CompletionOutput, *, called: bool) -> str | None:
        if answer.finish_reason == "length":
            return "max_tokens"
        if called:
            return "tool_use"
        return "end_turn" if _stop_sequence(answer) is None else "stop_sequence"

    async def events(self) -> AsyncGenerator[bytes, None]:
        blocks = BlockEvents()
        begun = False
        async for update in self._run.updates():
            data = []
            for answer, events in update:
                if not begun:
                    begun = True
                    data.append(self._start())
                data += [written for event in events for written in blocks.of(event)]
                if answer.finished:
                    data += [*blocks.close(), *self._end(answer, called=blocks.called)]
            if data:
                yield b"".join(data)

    def _start(self) -> bytes:
        usage = self._usage()
        usage.output_tokens = 0
        message = AnswerMessage(
            id=self._run.identity.id,
            model=self._run.identity.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
        )
        return _event("message_start", message=message)

    def _end(self, answer: CompletionOutput, *, called: bool) -> Iterator[bytes]:
        delta = {"stop_reason": self._stop_reason(answer, called=called), "stop_sequence": _stop_sequence(answer)}
        yield _event("message_delta", delta=delta, usage=self._usage())
        yield _event("message_stop")


class BlockEvents:
    """Writes what the model says as blocks: one at a time, each begun, continued and ended. called: whether there was
    a call."""

    def __init__(self) -> None:
        self.called = False
        self._index = -1
        self._kind: str | None = None

    def of(self, event: Event) -> Iterator[bytes]:
        match event:
            case Content(text):
                yield from self._into("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._into("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallBegin(_, call_id, name):
                yield from self.close()
                self.called = True
                yield from self._into("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})

    def close(self) -> Iterator[bytes]:
        if self._kind is not None:
            self._kind = None
            yield _event("content_block_stop", index=self._index)

    def _into(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        if self._kind != kind:
            yield from self.close()
            self._kind = kind
            self._index += 1
            yield _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def _stop_sequence(answer: CompletionOutput) -> str | None:
    return answer.stop_reason if isinstance(answer.stop_reason, str) else None


def _blocks(message: Message) -> Iterator[TextBlock | ThinkingBlock | ToolUseBlock]:
    if message.reasoning:
        yield ThinkingBlock(message.reasoning)
    if message.content:
        yield TextBlock(message.content)
    for call in message.calls:
        yield ToolUseBlock(call.id, call.name, arguments_of(call.arguments))
