"""Ollama's routes: /api/chat, /api/generate, /api/tags, /api/show, /api/ps and /api/version, and those of embed.py."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tessera._version import __version__
from tessera.engine.model_tasks import GENERATE, tasks_of
from tessera.parsing.response import CallArguments, CallBegin, Content, Event, Message, ParsedCall, Reasoning
from tessera.parsing.values import arguments_of
from tessera.request import CompletionOutput
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder, Values, decoded
from tessera.server.error_forms import Form
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.run import ChatRun
from tessera.server.http import detail_of, json_response, read_body
from tessera.server.keys import allows
from tessera.server.ollama import embed
from tessera.server.ollama.chat import name_of, of_chat, of_prompt
from tessera.server.ollama.protocol import (
    AnswerLine,
    Call,
    ChatAnswer,
    ChatRequest,
    Function,
    GenerateAnswer,
    GenerateRequest,
    OllamaMessage,
    ShownModel,
    ShowRequest,
    Tags,
    VersionAnswer,
)
from tessera.server.ollama.tags import details_of, tag_of, time_of
from tessera.server.openapi import JsonRoute
from tessera.server.sse import EventWire

_NAMES = {
    "response_format.json_schema.schema": "format",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
}
_UNSERVED: Mapping[str, Values] = {"logprobs": (False,), "top_logprobs": (0,)}
_UNSERVED_OF_PROMPTS: Mapping[str, Values] = {
    **_UNSERVED,
    "context": ([],),
    "suffix": ("",),
    "template": ("",),
}


_CAPABILITIES = {GENERATE: "completion", "embed": "embedding"}


class OllamaError(msgspec.Struct):
    error: str


def error_form(message: str, _status: int) -> bytes:
    return msgspec.json.encode(OllamaError(message))


FORM = Form(OllamaError, error_form)
LINES = EventWire(lambda error: error_form(detail_of(error).message, 500) + b"\n", b"", b"application/x-ndjson")


def routes(context: ServerContext) -> list[JsonRoute]:
    limits = context.settings.limits
    large = {"messages": limits.body_bytes, "tools": limits.tools_bytes}
    chats = RequestDecoder(context, ChatRequest, _UNSERVED, large)
    prompts = RequestDecoder(
        context,
        GenerateRequest,
        _UNSERVED_OF_PROMPTS,
        {"prompt": limits.body_bytes, "images": limits.body_bytes},
    )
    served = Served(context)

    async def read_chat(body: bytes, scope: Scope) -> OllamaAnswer:
        chat = of_chat(context, await chats.decode(body))
        return OllamaAnswer(
            await ChatRun.prepare(context, chat, scope, "chat", _NAMES), stream=bool(chat.stream), chats=True
        )

    async def read_prompt(body: bytes, scope: Scope) -> OllamaAnswer:
        chat = of_prompt(context, await prompts.decode(body))
        run = await ChatRun.prepare(context, chat, scope, "generate", _NAMES)
        return OllamaAnswer(run, stream=bool(chat.stream), chats=False)

    posting: dict[str, Any] = {"methods": ("POST",), "stream": "application/x-ndjson"}
    return [
        JsonRoute(
            "/api/chat",
            GenerationEndpoint(read_chat, context),
            "Answers a chat by Ollama's API.",
            body=ChatRequest,
            answer=ChatAnswer,
            **posting,
        ),
        JsonRoute(
            "/api/generate",
            GenerationEndpoint(read_prompt, context),
            "Answers a prompt by Ollama's API.",
            body=GenerateRequest,
            answer=GenerateAnswer,
            **posting,
        ),
        JsonRoute("/api/tags", served.tags, "The models, by Ollama's API.", answer=Tags),
        JsonRoute("/api/ps", served.tags, "The models that are loaded, by Ollama's API.", answer=Tags),
        JsonRoute(
            "/api/show",
            served.show,
            "One model, by Ollama's API.",
            methods=("POST",),
            body=ShowRequest,
            answer=ShownModel,
        ),
        *embed.routes(context),
        JsonRoute("/api/version", served.version, "The version, by Ollama's API.", answer=VersionAnswer),
    ]


class Served:
    """What is served, as Ollama's tools ask for it."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._decoder = msgspec.json.Decoder(ShowRequest)

    async def tags(self, request: Request) -> Response:
        config, since = self._context.engine.config.model, self._context.created
        names = [name for name in self._context.models if allows(request.scope, name)]
        return json_response(Tags([tag_of(name, config, since) for name in names]))

    async def show(self, request: Request) -> Response:
        asked = decoded(self._decoder, await read_body(request.receive))
        model = self._context.allowed_model(name_of(self._context, asked.model or asked.name or ""), request.scope)
        details, known = details_of(self._context.engine.config.model), model.format
        family = details.family
        tasks = tasks_of(model.engine.config.model)
        capabilities = [name for task, name in _CAPABILITIES.items() if task in tasks]
        known = known if GENERATE in tasks else None
        capabilities += ["vision"] if "image" in model.engine.config.model.modalities else []
        capabilities += ["tools"] if known is not None and known.calls is not None else []
        capabilities += ["thinking"] if known is not None and known.reasoning is not None else []
        info = {
            "general.architecture": family,
            f"{family}.context_length": model.engine.info.max_model_len,
            f"{family}.vocab_size": model.engine.config.model.vocab_size,
        }
        return json_response(ShownModel(details=details, model_info=info, capabilities=capabilities))

    async def version(self, _request: Request) -> Response:
        return json_response(VersionAnswer(__version__))


class OllamaAnswer:
    """One answer, whole or as lines. chats: whether it is a message, or a text."""

    wire = LINES

    def __init__(self, run: ChatRun, *, stream: bool, chats: bool) -> None:
        self.stream = stream
        self._run = run
        self._chats = chats
        self._began = time.monotonic_ns()
        self._first: int | None = None

    async def whole(self) -> AnswerLine:
        self._first = self._began
        return await self._run.whole(self._assembled)

    def _assembled(self, answers: Sequence[tuple[CompletionOutput, list[Event]]]) -> AnswerLine:
        ((answer, events),) = answers
        return self._ended(self._line(Message.from_events(events)), answer)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Calls are whole: their arguments are objects."""
        calls: list[tuple[CallBegin, list[str]]] = []
        async for _, output in self._run.generation.outputs():
            update = self._run.read(output)
            self._first = self._first or time.monotonic_ns()
            lines = []
            for answer, events in update:
                lines += [self._line(message) for message in _spoken(events, calls)]
                if answer.finished:
                    if calls:
                        lines.append(self._line(_called(calls)))
                    lines.append(self._ended(self._line(Message()), answer))
            if lines:
                yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

    def _line(self, message: Message) -> AnswerLine:
        common: dict[str, Any] = {"model": self._run.identity.model, "created_at": time_of(time.time())}
        thinking = message.reasoning or UNSET
        if not self._chats:
            return GenerateAnswer(response=message.content, thinking=thinking, **common)
        calls = [Call(Function(call.name, arguments_of(call.arguments))) for call in message.calls]
        said = OllamaMessage(role="assistant", content=message.content, thinking=thinking, tool_calls=calls or UNSET)
        return ChatAnswer(message=said, **common)

    def _ended(self, line: AnswerLine, answer: CompletionOutput) -> AnswerLine:
        usage, now = self._run.generation.usage(), time.monotonic_ns()
        first = self._first or now
        line.done, line.done_reason = True, answer.finish_reason or "stop"
        line.total_duration, line.load_duration = now - self._began, 0
        line.prompt_eval_count, line.prompt_eval_duration = usage.num_prompt_tokens, first - self._began
        line.eval_count, line.eval_duration = usage.num_output_tokens, now - first
        return line


def _spoken(events: list[Event], calls: list[tuple[CallBegin, list[str]]]) -> Iterator[Message]:
    """What is new, as messages; calls are collected."""
    for event in events:
        match event:
            case Content(text):
                yield Message(content=text)
            case Reasoning(text):
                yield Message(reasoning=text)
            case CallBegin():
                calls.append((event, []))
            case CallArguments(_, text):
                calls[-1][1].append(text)


def _called(calls: list[tuple[CallBegin, list[str]]]) -> Message:
    return Message(calls=[ParsedCall(begin.id, begin.name, "".join(parts)) for begin, parts in calls])
