"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec.json import encode
from starlette.types import Scope

from tessera.engine.input_processor import Prompt
from tessera.parsing.response import CallArguments, CallBegin, Content, Event, Message, Reasoning
from tessera.request import CompletionOutput
from tessera.server.assembly import encoded, in_one_piece, is_small, taken
from tessera.server.context import ServerContext
from tessera.server.decode import Envelope, RequestDecoder
from tessera.server.generation.chat import ToolCall
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.logprobs import LogprobWriter, TokenNames
from tessera.server.generation.prompt import check_chat_sizes, echoed
from tessera.server.generation.run import ChatRun
from tessera.server.generation.sampling import check_allowed, logprob_alternatives
from tessera.server.openai.chunks import NO_TOKEN_IDS, ChunkWriter, finish, piece, prompt_token_ids, token_ids
from tessera.server.openai.logprobs import of_prompt
from tessera.server.openai.protocol import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatLogprobs,
    PromptLogprobs,
    Usage,
)
from tessera.server.openai.unserved_fields import CHAT, GENERATION
from tessera.server.openapi import EVENT_STREAM, JsonRoute
from tessera.server.settings import Limits
from tessera.server.sse import OPENAI

PREFIX = "chatcmpl"
"""How the ids of answers begin."""
_ROLE = b'"delta":{"role":"assistant","content":""}'
_NO_DELTA = b'"delta":{}'
_EMPTY = b'{"content":""}'


StoreAnswer = Callable[[ChatCompletionRequest, ChatRun, Scope], "ChatCompletionAnswer"]


def route(context: ServerContext, store_answer: StoreAnswer) -> JsonRoute:
    """store_answer: makes the answer to a chat whose request says that it is to be stored."""
    decoder = request_decoder(context)

    async def read(body: bytes, scope: Scope) -> ChatCompletionAnswer:
        request = await decoder.decode(body)
        run = await ChatRun.prepare(context, request, scope, PREFIX)
        return store_answer(request, run, scope) if request.store else ChatCompletionAnswer(request, run)

    return JsonRoute(
        "/v1/chat/completions",
        GenerationEndpoint(read, context),
        "Answers a chat, whole or as a stream.",
        methods=("POST",),
        body=ChatCompletionRequest,
        answer=ChatCompletion,
        stream=EVENT_STREAM,
    )


def request_decoder(context: ServerContext) -> RequestDecoder[ChatCompletionRequest]:
    limits = context.settings.limits
    return RequestDecoder(
        context,
        ChatCompletionRequest,
        {**GENERATION, **CHAT},
        large={"messages": limits.body_bytes, "tools": limits.tools_bytes, "allowed_token_ids": limits.body_bytes},
        further=lambda envelope: _check_envelope(envelope, limits, context.engine.config.model.vocab_size),
        also=("chat_template_kwargs",),
    )


def _check_envelope(envelope: Envelope, limits: Limits, vocab_size: int) -> None:
    """Raises RequestError for counts and sizes above their limits."""
    check_chat_sizes(envelope, limits)
    check_allowed(envelope.raw("allowed_token_ids"), vocab_size)


class ChatCompletionAnswer:
    """The answer to one chat, whole or as a stream."""

    wire = OPENAI

    def __init__(self, request: ChatCompletionRequest, run: ChatRun) -> None:
        self.stream = bool(request.stream)
        self._request = request
        self._run = run
        self._echoed = echoed(request.messages) if request.echo else ""
        self._no_ids = NO_TOKEN_IDS if request.return_token_ids else b""
        self._logprobs: LogprobWriter | None = None
        if request.logprobs:
            engine = run.generation.model.engine
            names = TokenNames(engine.tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
            vocab_size = engine.config.model.vocab_size
            self._logprobs = LogprobWriter(names, logprob_alternatives(request, request.top_logprobs, vocab_size))

    async def whole(self) -> list[bytes]:
        return await self._run.whole(self._assembled)

    def _assembled(self, answers: list[tuple[CompletionOutput, list[Event]]]) -> list[bytes]:
        choices = (self._choice(answer.index, answer, Message.from_events(events)) for answer, events in taken(answers))
        return list(encoded(self._completion([]), choices=choices))

    def _completion(self, choices: list[ChatChoice]) -> ChatCompletion:
        return ChatCompletion(
            id=self._run.identity.id,
            created=self._run.identity.created,
            model=self._run.identity.model,
            choices=choices,
            usage=Usage.from_tokens(self._run.generation.usage()),
            system_fingerprint=self._run.generation.model.fingerprint,
            prompt_token_ids=self._prompt().ids.tolist() if self._request.return_token_ids else msgspec.UNSET,
            prompt_logprobs=self._prompt_logprobs(),
            kv_transfer_params=self._run.generation.told_transfer(),
        )

    def _prompt(self) -> Prompt:
        return self._run.generation.choice_prompt(0)

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        if self._request.prompt_logprobs is None:
            return None
        return of_prompt(self._run.generation.choice_prompt_logprobs(0))

    def _choice(self, index: int, answer: CompletionOutput, message: Message) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=self._message(message),
            logprobs=self._logprobs_of(answer),
            finish_reason=self._run.finish_reason(answer),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._request.return_token_ids else msgspec.UNSET,
        )

    def _message(self, read: Message) -> AnswerMessage:
        content = self._echoed + (read.content or "")
        message = AnswerMessage(content if content or not read.calls else None)
        if read.calls:
            message.tool_calls = [ToolCall.from_call(call) for call in read.calls]
        if self._run.reasons:
            message.reasoning = message.reasoning_content = read.reasoning or None
        return message

    async def events(self) -> AsyncGenerator[bytes, None]:
        writer = ChunkWriter(self._run.identity, "chat.completion.chunk", self._run.generation, self._request)
        begun = [False] * self._run.generation.num_choices

        def write(update: Sequence[tuple[CompletionOutput, Sequence[Event]]]) -> bytes:
            data: list[bytes] = []
            for answer, events in update:
                if not begun[answer.index]:
                    begun[answer.index] = True
                    data += self._begin(writer, answer.index)
                data += [writer.chunk(answer.index, choice) for choice in self._pieces(answer, events)]
                if answer.finished:
                    answer.finish_reason = self._run.finish_reason(answer)
                    data.append(writer.chunk(answer.index, finish(answer.index, _NO_DELTA, answer, self._no_ids)))
            return b"".join(data)

        async for _, output in self._run.generation.outputs():
            update = self._run.read(output)
            if is_small(output.outputs):
                data = write(update)
            else:
                data = await self._run.generation.assembly.run(partial(write, update))
            if data:
                yield data
        if last := writer.last():
            yield last

    def _begin(self, writer: ChunkWriter, index: int) -> Iterator[bytes]:
        """The events before a choice's first token: its role, and what it echoes."""
        ids = prompt_token_ids(self._prompt()) if self._request.return_token_ids else b""
        yield writer.chunk(index, piece(index, _ROLE, token_ids=self._no_ids), begins=True, members=ids)
        if self._echoed:
            delta = b'"delta":' + _delta(Content(self._echoed))
            yield writer.chunk(index, piece(index, delta, token_ids=self._no_ids), begins=True)

    def _pieces(self, answer: CompletionOutput, events: Sequence[Event]) -> Iterator[bytes]:
        """The choices of the chunks for what is new. Log probabilities and token ids are in the first."""
        if not events and not self._has_news(answer):
            return
        ids = token_ids(answer) if self._request.return_token_ids else b""
        first = _delta(events[0]) if events else _EMPTY
        yield piece(
            answer.index, b'"delta":' + first, in_one_piece(self._logprobs_of(answer), len(answer.token_ids)), ids
        )
        for event in events[1:]:
            yield piece(answer.index, b'"delta":' + _delta(event), token_ids=self._no_ids)

    def _has_news(self, answer: CompletionOutput) -> bool:
        """Whether there are tokens whose ids or log probabilities were requested, even if they have no text yet."""
        return bool(answer.token_ids) and bool(self._request.logprobs or self._request.return_token_ids)

    def _logprobs_of(self, answer: CompletionOutput) -> ChatLogprobs | None:
        return None if self._logprobs is None else ChatLogprobs(self._logprobs.tokens(answer))


def _delta(event: Event) -> bytes:
    match event:
        case Content(text):
            return b'{"content":' + encode(text) + b"}"
        case Reasoning(text):
            shown = encode(text)
            return b'{"reasoning":' + shown + b',"reasoning_content":' + shown + b"}"
        case CallBegin(index, call_id, name, custom):
            head = b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]}'
            if custom:
                head = b'{"tool_calls":[{"index":%d,"id":%b,"type":"custom","custom":{"name":%b,"input":""}}]}'
            return head % (index, encode(call_id), encode(name))
        case CallArguments(index, text, custom=True):
            return b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}' % (index, encode(text))
        case CallArguments(index, text):
            return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, encode(text))
