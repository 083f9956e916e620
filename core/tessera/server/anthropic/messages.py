"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tessera.parsing.response import CallArguments, CallBegin, Content, Event, Reasoning
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
from tessera.server.decode import RequestDecoder
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.run import ChatRun, count_tokens
from tessera.server.http import json_response, read_body, unless_gone
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
        return MessagesAnswer(asked, await ChatRun.prepare(context, chat, scope, "msg", NAMES))

    async def count(request: Request) -> Response:
        asked = await counting.decode(await read_body(request.receive))
        counted = count_tokens(context, chat_of(context, asked), request.scope, NAMES)
        return json_response(TokenCount(await unless_gone(request.receive, counted)))

    return [
        JsonRoute(
            "/v1/messages",
            GenerationEndpoint(read, context),
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
    "response_format.json_schema": "output_config.format",
    ".function.parameters": ".input_schema",
    ".function.": ".",
    "stop": "stop_sequences",
}
"""What errors of a chat are called in a message."""
_NOT_SERVED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],)}


class MessagesAnswer:
    """The answer to one chat, whole or as a stream."""

    wire = EVENTS

    def __init__(self, request: MessagesRequest, run: ChatRun) -> None:
        self.stream = bool(request.stream)
        self._run = run

    async def whole(self) -> AnswerMessage:
        return await self._run.whole(self._assembled)

    def _assembled(self, answers: Sequence[tuple[CompletionOutput, list[Event]]]) -> AnswerMessage:
        """The same blocks as those of the stream."""
        ((answer, events),) = answers
        blocks = BlockEvents(_unwritten)
        deque(blocks.write(answer, events), maxlen=0)
        return AnswerMessage(
            id=self._run.identity.id,
            model=self._run.identity.model,
            content=blocks.content,
            stop_reason=self._stop_reason(answer, called=blocks.called),
            stop_sequence=_stop_sequence(answer),
            usage=self._usage(),
        )

    def _usage(self) -> Usage:
        usage = self._run.generation.usage()
        cached = usage.num_cached_tokens
        return Usage(usage.num_prompt_tokens - cached, usage.num_output_tokens, cached)

    def _stop_reason(self, answer: CompletionOutput, *, called: bool) -> str | None:
        if answer.finish_reason == "length":
            return "max_tokens"
        if called:
            return "tool_use"
        return "end_turn" if _stop_sequence(answer) is None else "stop_sequence"

    async def events(self) -> AsyncGenerator[bytes, None]:
        blocks = BlockEvents(_event)
        begun = False
        async for _, output in self._run.generation.outputs():
            update = self._run.read(output)
            data = []
            for answer, events in update:
                if not begun:
                    begun = True
                    data.append(self._start())
                data += blocks.write(answer, events)
                if answer.finished:
                    data += self._end(answer, called=blocks.called)
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
    """Writes what the model says as blocks: one at a time, each begun, continued and ended. content: the blocks that
    have ended, as a message that is not streamed has them. write: makes an event of its type and fields."""

    def __init__(self, write: Callable[..., bytes]) -> None:
        self.content: list[TextBlock | ThinkingBlock | ToolUseBlock] = []
        self._make_event = write
        self._begun: TextBlock | ThinkingBlock | CallBegin | None = None
        self._texts: list[str] = []

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return any(isinstance(block, ToolUseBlock) for block in self.content)

    def write(self, answer: CompletionOutput, events: Iterable[Event]) -> Iterator[bytes]:
        """answer: what is new. events: what it says."""
        for event in events:
            yield from self._write_event(event)
        if answer.finished:
            yield from self._close()

    def _write_event(self, event: Event) -> Iterator[bytes]:
        match event:
            case Content(text):
                yield from self._into(TextBlock(""))
                yield self._say(text, {"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._into(ThinkingBlock(""))
                yield self._say(text, {"type": "thinking_delta", "thinking": text})
            case CallBegin(_, call_id, name):
                yield from self._close()
                yield from self._open(event, ToolUseBlock(call_id, name, {}))
            case CallArguments(_, text):
                yield self._say(text, {"type": "input_json_delta", "partial_json": text})

    def _into(self, block: TextBlock | ThinkingBlock) -> Iterator[bytes]:
        if type(self._begun) is not type(block):
            yield from self._close()
            yield from self._open(block, block)

    def _open(
        self, begun: TextBlock | ThinkingBlock | CallBegin, block: TextBlock | ThinkingBlock | ToolUseBlock
    ) -> Iterator[bytes]:
        self._begun = begun
        yield self._make_event("content_block_start", index=len(self.content), content_block=block)

    def _say(self, text: str, delta: dict[str, Any]) -> bytes:
        self._texts.append(text)
        return self._make_event("content_block_delta", index=len(self.content), delta=delta)

    def _close(self) -> Iterator[bytes]:
        text = "".join(self._texts)
        match self._begun:
            case TextBlock():
                ended: TextBlock | ThinkingBlock | ToolUseBlock = TextBlock(text)
            case ThinkingBlock():
                ended = ThinkingBlock(text)
            case CallBegin(_, call_id, name):
                ended = ToolUseBlock(call_id, name, arguments_of(text))
            case None:
                return
        yield self._make_event("content_block_stop", index=len(self.content))
        self.content.append(ended)
        self._begun, self._texts = None, []


def _unwritten(_kind: str, **_fields: Any) -> bytes:
    """For a message that is not streamed."""
    return b""


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def _stop_sequence(answer: CompletionOutput) -> str | None:
    return answer.stop_reason if isinstance(answer.stop_reason, str) else None
