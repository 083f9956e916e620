"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.json import encode
from starlette.requests import Request
from starlette.types import ASGIApp, Scope

from tessera.errors import RequestError
from tessera.request import CompletionOutput
from tessera.sampling_params import ReasoningParams, SamplingParams, StructuredOutputsParams
from tessera.server.context import ServerContext
from tessera.server.openai.answers import AnswerReader, FormatReader, PlainReader
from tessera.server.openai.decode import CHAT, GENERATION, Envelope, RequestDecoder
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
from tessera.server.openai.tools import ToolUse, check_tools, grammar_of, tool_use
from tessera.server.openapi import JsonRoute
from tessera.server.settings import Limits

_ROLE = b'"delta":{"role":"assistant","content":""}'
_NO_DELTA = b'"delta":{}'
_EMPTY = b'{"content":""}'


def routes(context: ServerContext) -> list[JsonRoute]:
    limits = context.settings.limits
    decoder = RequestDecoder(
        ChatCompletionRequest,
        {**GENERATION, **CHAT},
        large={"messages": limits.body_bytes, "tools": limits.tools_bytes, "allowed_token_ids": limits.body_bytes},
        other_bytes=limits.other_bytes,
        further=lambda envelope: _check_envelope(envelope, limits, context.engine.config.model.vocab_size),
        also=("chat_template_kwargs",),
    )

    async def read(body: bytes, scope: Scope) -> ChatAnswer:
        request = decoder.decode(body)
        check_common(request, limits)
        context.check_model(request.model)
        use = tool_use(request, context.format, limits)
        asked = grammar_of(structured_outputs(request), use, context.format)
        params = _sampling_params(context, request, asked.params)
        way = way_of(context, request, params)
        identity = Identity.of("chatcmpl", request, scope)
        await check_tools(context, use)
        await check_structured(context, asked, params)
        prompt, reasons = await render(context, request, use)
        params = _reading(context, params, use, request.thinking_token_budget, reasons=reasons)
        owner = owner_of(context, request, scope)
        generation = Generation(context, owner, [prompt], params, way, identity.id)
        return ChatAnswer(context, request, identity, generation, use, reasons=reasons)

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
    """Raises RequestError for counts and sizes above their limits."""
    check_chat_sizes(envelope, limits)
    check_allowed(envelope.raw("allowed_token_ids"), vocab_size)


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


async def render(context: ServerContext, request: ChatCompletionRequest, use: ToolUse) -> tuple[Prompt, bool]:
    """Renders and tokenizes the chat. Also returns whether the answer begins within reasoning. Raises RequestError,
    TextWorkerError."""
    if context.engine.text is None:
        raise RequestError("This server has no tokenizer: use /v1/completions with token ids.", param="messages")
    job = chat_job(context, request.messages, request)
    job.tools = use.shown
    own = job.template_kwargs or {}
    job.template_kwargs = {**_effort(request.reasoning_effort, context.engine.text.template), **own}
    job.max_tokens = context.engine.info.max_model_len
    markers = None if context.format is None else context.format.reasoning
    if markers is not None:
        job.reasoning = (markers.begin, markers.end)
    rendered = await context.engine.text.chat(job)
    reasons = markers is not None and (markers.begun if rendered.reasons is None else rendered.reasons)
    return Prompt(rendered.ids[0]), reasons


def _effort(asked: str | None, template: str) -> dict[str, Any]:
    """The template's own variables for how much to reason, where it has any."""
    if asked is None:
        return {}
    found: dict[str, Any] = {"reasoning_effort": asked} if "reasoning_effort" in template else {}
    if asked == "none":
        found |= {name: False for name in ("enable_thinking", "thinking") if name in template}
    return found


def _reading(
    context: ServerContext, params: SamplingParams, use: ToolUse, budget: int | None, *, reasons: bool
) -> SamplingParams:
    """The params with what reading the answer needs: the markers stay in the text, and a grammar waits for the end of
    the reasoning. Raises RequestError for a budget of reasoning that the model has none of."""
    known = context.format
    gate, kept = None, params.kept_special_tokens
    if known is not None and (known.reasoning is not None or use.tools):
        kept = known.markers
    if known is not None and known.reasoning is not None and not (params.structured_outputs is None and budget is None):
        gate = ReasoningParams(known.reasoning.begin, known.reasoning.end, begun=reasons)
    return msgspec.structs.replace(params, kept_special_tokens=kept, reasoning=gate, thinking_token_budget=budget)


class ChatAnswer:
    """The answer to one chat, whole or as a stream."""

    def __init__(
        self,
        context: ServerContext,
        request: ChatCompletionRequest,
        identity: Identity,
        generation: Generation,
        use: ToolUse,
        *,
        reasons: bool,
    ) -> None:
        self.stream = bool(request.stream)
        self._request = request
        self._identity = identity
        self._generation = generation
        names = TokenNames(context.engine.tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        vocab_size = context.engine.config.model.vocab_size
        self._logprobs = LogprobWriter(names, shown_alternatives(request.top_logprobs, vocab_size))
        self._named = use.named
        known = context.format
        choices = range(generation.num_choices)
        self._readers: Sequence[AnswerReader] = [PlainReader() for _ in choices]
        if known is not None and (known.reasoning is not None or use.tools):
            hidden = request.include_reasoning is False
            self._readers = [
                FormatReader(known, use.tools, context.engine.tokenizer, reasons=reasons, hidden=hidden)
                for _ in choices
            ]
            generation.counts_reasoning(lambda: sum(reader.reasoning_tokens for reader in self._readers))

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
            message=self._readers[index].message(answer),
            logprobs=self._logprobs_of(answer),
            finish_reason=self._finish_reason(index, answer),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._request.return_token_ids else msgspec.UNSET,
        )

    def _finish_reason(self, index: int, answer: CompletionOutput) -> str | None:
        """As OpenAI says it: calls that the model chose to make, or had to choose from, are why it stopped."""
        called = self._readers[index].calls and not self._named
        return "tool_calls" if called and answer.finish_reason == "stop" else answer.finish_reason

    async def events(self) -> AsyncGenerator[bytes, None]:
        writer = ChunkWriter(self._identity, "chat.completion.chunk", self._generation, self._request)
        begun = [False] * self._generation.num_choices
        async for _, output in self._generation.outputs():
            data = []
            for answer in output.outputs:
                if not begun[answer.index]:
                    begun[answer.index] = True
                    data.append(writer.chunk(piece(answer.index, _ROLE)))
                data += [writer.chunk(choice) for choice in self._pieces(answer)]
                if answer.finished:
                    answer.finish_reason = self._finish_reason(answer.index, answer)
                    data.append(writer.chunk(finish(answer.index, _NO_DELTA, answer)))
            if data:
                yield b"".join(data)
        if last := writer.last():
            yield last

    def _pieces(self, answer: CompletionOutput) -> Iterator[bytes]:
        """The choices of the chunks for what is new. Log probabilities and token ids are in the first."""
        deltas = self._readers[answer.index].deltas(answer)
        if not deltas and not self._has_news(answer):
            return
        ids = token_ids(answer) if self._request.return_token_ids else b""
        yield piece(
            answer.index, b'"delta":' + (deltas[0] if deltas else _EMPTY), encode(self._logprobs_of(answer)), ids
        )
        for delta in deltas[1:]:
            yield piece(answer.index, b'"delta":' + delta)

    def _has_news(self, answer: CompletionOutput) -> bool:
        """Whether there are tokens whose ids or log probabilities were requested, even if they have no text yet."""
        return bool(answer.token_ids) and bool(self._request.logprobs or self._request.return_token_ids)

    def _logprobs_of(self, answer: CompletionOutput) -> ChatLogprobs | None:
        return self._logprobs.chat(answer) if self._request.logprobs else None
