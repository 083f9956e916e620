"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec.json import encode
from starlette.requests import Request
from starlette.types import ASGIApp, Scope

from tessera.errors import RequestError
from tessera.request import CompletionOutput
from tessera.sampling_params import SamplingParams, StructuredOutputsParams
from tessera.server.context import ServerContext
from tessera.server.openai.decode import CHAT, GENERATION, Envelope, RequestDecoder, asks_for_nothing
from tessera.server.openai.generation import (
    ChunkWriter,
    Generation,
    GenerationEndpoint,
    Identity,
    Prompt,
    collect,
    finish,
    piece,
    token_ids,
)
from tessera.server.openai.logprobs import LogprobWriter, TokenNames, of_prompt
from tessera.server.openai.prompts import chat_job, check_chat_sizes
from tessera.server.openai.protocol import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatLogprobs,
    PromptLogprobs,
)
from tessera.server.openai.sampling import (
    check_allowed,
    check_alternatives,
    check_common,
    owner_of,
    sampling_params,
    shown_alternatives,
    way_of,
)
from tessera.server.openai.structured import check_structured, structured_outputs
from tessera.server.openapi import JsonRoute
from tessera.server.settings import Limits

_ROLE = b'"delta":{"role":"assistant","content":""}'
_NO_DELTA = b'"delta":{}'


def routes(context: ServerContext) -> list[JsonRoute]:
    limits = context.settings.limits
    decoder = RequestDecoder(
        ChatCompletionRequest,
        {**GENERATION, **CHAT},
        large={"messages": limits.body_bytes, "tools": limits.tools_bytes, "allowed_token_ids": limits.body_bytes},
        other_bytes=limits.other_bytes,
        further=lambda envelope: _check_envelope(envelope, limits, context.engine.config.model.vocab_size),
        also=("tool_choice", "chat_template_kwargs"),
    )

    async def read(body: bytes, scope: Scope) -> ChatAnswer:
        request = decoder.decode(body)
        check_common(request, limits)
        context.check_model(request.model)
        asked = structured_outputs(request)
        params = _sampling_params(context, request, asked.params)
        way = way_of(context, request, params)
        identity = Identity.of("chatcmpl", request, scope)
        await check_structured(context, asked, params)
        prompt = await render(context, request)
        owner = owner_of(context, request, scope)
        generation = Generation(context, owner, [prompt], params, way, identity.id)
        return ChatAnswer(context, request, identity, generation)

    answering = GenerationEndpoint(read, context.counts)

    async def chat(_request: Request) -> ASGIApp:
        return answering

    return [
        JsonRoute(
            "/v1/chat/completions",
            chat,
            "Answers a chat, whole or as a stream.",
            methods=("POST",),
            body=ChatCompletionRequest,
            answer=ChatCompletion,
            events=True,
        )
    ]


def _check_envelope(envelope: Envelope, limits: Limits, vocab_size: int) -> None:
    """Raises RequestError for counts and sizes above their limits, and for tools that the model may call.

    With tool_choice "none" the tools are accepted but not shown to the model: nothing would parse a call in its answer.
    """
    check_chat_sizes(envelope, limits)
    check_allowed(envelope.raw("allowed_token_ids"), vocab_size)
    choice, tools = envelope.raw("tool_choice"), envelope.raw("tools")
    if choice and not asks_for_nothing(choice, ("none",)):
        raise RequestError('Tools are not supported yet: the only tool_choice is "none".', param="tool_choice")
    if tools and choice != b'"none"' and not asks_for_nothing(tools, ([],)):
        raise RequestError('Tools are not supported yet: leave out tools or set tool_choice to "none".', param="tools")


def _sampling_params(
    context: ServerContext, request: ChatCompletionRequest, structured: StructuredOutputsParams | None
) -> SamplingParams:
    field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    most = getattr(request, field)
    if most is not None and not 1 <= most < 2**31:
        raise RequestError(f"{field} must be at least 1 and below 2**31, got {most}.", param=field)
    return sampling_params(
        request,
        context.settings.default_sampling,
        max_tokens=context.settings.answers.capped(most),
        logprobs=_logprobs(context, request),
        detokenize=True,
        structured=structured,
    )


def _logprobs(context: ServerContext, request: ChatCompletionRequest) -> int | None:
    top = request.top_logprobs
    check_alternatives("top_logprobs", top, context.engine.config.model)
    if top and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
    return (top or 0) if request.logprobs else None


async def render(context: ServerContext, request: ChatCompletionRequest) -> Prompt:
    """Renders and tokenizes the chat. Raises RequestError, TextWorkerError."""
    if context.engine.text is None:
        raise RequestError("This server has no tokenizer: use /v1/completions with token ids.", param="messages")
    job = chat_job(context, request.messages, request)
    job.max_tokens = context.engine.info.max_model_len
    return Prompt((await context.engine.text.chat(job)).ids[0])


class ChatAnswer:
    """The answer to one chat, whole or as a stream."""

    def __init__(
        self, context: ServerContext, request: ChatCompletionRequest, identity: Identity, generation: Generation
    ) -> None:
        self.stream = bool(request.stream)
        self._request = request
        self._identity = identity
        self._generation = generation
        names = TokenNames(context.engine.tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        vocab_size = context.engine.config.model.vocab_size
        self._logprobs = LogprobWriter(names, shown_alternatives(request.top_logprobs, vocab_size))

    async def whole(self) -> ChatCompletion:
        answers = await collect(self._generation)
        return ChatCompletion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            usage=self._generation.usage(),
            prompt_logprobs=self._prompt_logprobs(),
        )

    def _prompt_logprobs(self) -> PromptLogprobs | msgspec.UnsetType:
        if self._request.prompt_logprobs is None:
            return msgspec.UNSET
        return of_prompt(self._generation.prompt_logprobs_of(0))

    def _choice(self, index: int, answer: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AnswerMessage(answer.text),
            logprobs=self._logprobs_of(answer),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._request.return_token_ids else msgspec.UNSET,
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        writer = ChunkWriter(self._identity, "chat.completion.chunk", self._generation, self._request)
        begun = [False] * self._generation.num_choices
        async for _, output in self._generation.outputs():
            data = []
            for answer in output.outputs:
                if not begun[answer.index]:
                    begun[answer.index] = True
                    data.append(writer.chunk(piece(answer.index, _ROLE)))
                if answer.text or self._has_news(answer):
                    data.append(writer.chunk(self._piece(answer)))
                if answer.finished:
                    data.append(writer.chunk(finish(answer.index, _NO_DELTA, answer)))
            if data:
                yield b"".join(data)
        if last := writer.last():
            yield last

    def _piece(self, answer: CompletionOutput) -> bytes:
        content = b'"delta":{"content":' + encode(answer.text) + b"}"
        ids = token_ids(answer) if self._request.return_token_ids else b""
        return piece(answer.index, content, encode(self._logprobs_of(answer)), ids)

    def _has_news(self, answer: CompletionOutput) -> bool:
        """Whether there are tokens whose ids or log probabilities were requested, even if they have no text yet."""
        return bool(answer.token_ids) and bool(self._request.logprobs or self._request.return_token_ids)

    def _logprobs_of(self, answer: CompletionOutput) -> ChatLogprobs | None:
        return self._logprobs.chat(answer) if self._request.logprobs else None
