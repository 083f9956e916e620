"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

import msgspec
from msgspec.json import encode
from starlette.types import Scope

from tessera.request import CompletionOutput
from tessera.server.assembly import encoded, in_one_piece, is_small, taken
from tessera.server.context import ServerContext
from tessera.server.decode import Envelope, RequestDecoder
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.logprobs import LogprobWriter, TokenNames
from tessera.server.generation.output import Generation, collect
from tessera.server.generation.prepare import Identity, PreparedRequest, RequestOwner, prepare
from tessera.server.generation.prompt import prompt_truncation
from tessera.server.generation.sampling import (
    check_allowed,
    check_alternatives,
    check_fields,
    generation_method,
    logprob_alternatives,
    sampling_params,
)
from tessera.server.generation.structured import prepare_params, structured_outputs
from tessera.server.openai.chunks import NO_TOKEN_IDS, ChunkWriter, finish, piece, prompt_token_ids, token_ids
from tessera.server.openai.infill import infilled
from tessera.server.openai.logprobs import ChoiceLogprobs, EchoedLogprobs, joined, of_prompt
from tessera.server.openai.prompts import prompt_field, read_prompts
from tessera.server.openai.protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    PromptLogprobs,
    Usage,
)
from tessera.server.openai.unserved_fields import COMPLETIONS, GENERATION
from tessera.server.openapi import EVENT_STREAM, JsonRoute
from tessera.server.sse import OPENAI

DEFAULT_MAX_TOKENS = 16


def routes(context: ServerContext) -> list[JsonRoute]:
    decoder = request_decoder(context)

    async def read(body: bytes, scope: Scope) -> CompletionAnswer:
        request = await decoder.decode(body)
        prepared = await prepare_completion(context, request, scope)
        return CompletionAnswer(request, Generation(context, prepared))

    return [
        JsonRoute(
            "/v1/completions",
            GenerationEndpoint(read, context),
            "Completes each prompt, whole or as a stream.",
            methods=("POST",),
            body=CompletionRequest,
            answer=Completion,
            stream=EVENT_STREAM,
        )
    ]


def request_decoder(context: ServerContext) -> RequestDecoder[CompletionRequest]:
    limits = context.settings.limits
    return RequestDecoder(
        context,
        CompletionRequest,
        {**GENERATION, **COMPLETIONS},
        large={"prompt": limits.body_bytes, "allowed_token_ids": limits.body_bytes},
        further=lambda envelope: _check_envelope(envelope, context),
        also=("truncate_prompt_tokens",),
    )


async def prepare_completion(context: ServerContext, request: CompletionRequest, scope: Scope) -> PreparedRequest:
    """Raises RequestError, NotFoundError, EngineDeadError, TextWorkerError."""
    settings = context.settings
    check_fields(request, settings.limits)
    model = context.generating_model(request.model, scope)
    check_alternatives(request, "logprobs", request.logprobs, model.engine.config.model)
    # The engine generates at least one token; it is left out if the request wants nothing but the echo.
    prompt_only = bool(request.echo) and request.max_tokens == 0
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    grammar = structured_outputs(request)
    params = sampling_params(
        request,
        settings.default_sampling,
        max_tokens=1 if prompt_only else settings.answers.capped(max_tokens),
        logprobs=request.logprobs,
        detokenize=model.engine.tokenizer is not None,
        structured=grammar.params,
        prompt_logprobs=request.logprobs if request.echo else None,
    )
    method = generation_method(model, request, params, request.best_of)
    wrap = infilled(request, model.engine.tokenizer)
    truncation = prompt_truncation(model, request, params.max_tokens)
    identity = Identity.from_request(model, "cmpl", request, settings.limits, scope)
    owner = RequestOwner.from_request(context, model, request, scope)
    params = await prepare_params(model, grammar, params, owner.client)
    special = request.add_special_tokens is not False
    prompts = await read_prompts(
        context, model, request.prompt, special, truncation=truncation, wrap=wrap, client=owner.client
    )
    return await prepare(context, model, identity, owner, method, params, prompts, prompt_only=prompt_only)


def _check_envelope(envelope: Envelope, context: ServerContext) -> None:
    """Raises RequestError."""
    limits = context.settings.limits
    prompt_field(limits).check(envelope, limits, context.engine.info.max_model_len)
    check_allowed(envelope.raw("allowed_token_ids"), context.engine.config.model.vocab_size)


class CompletionAnswer:
    """The answer to one completions request, whole or as a stream."""

    wire = OPENAI

    def __init__(self, request: CompletionRequest, generation: Generation) -> None:
        self.stream = bool(request.stream)
        self._request = request
        self._generation = generation
        self._tokenizer = generation.model.engine.tokenizer
        names = TokenNames(self._tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        alternatives = logprob_alternatives(request, request.logprobs, generation.model.engine.config.model.vocab_size)
        writer = LogprobWriter(names, alternatives)
        self._logprobs = [ChoiceLogprobs(writer) for _ in range(generation.num_choices)]
        self._echoed_logprobs = EchoedLogprobs(writer)

    async def whole(self) -> list[bytes]:
        answers = await collect(self._generation)

        def assemble() -> list[bytes]:
            choices = (self._choice(index, answer) for index, answer in enumerate(taken(answers)))
            completion = Completion(
                id=self._generation.identity.id,
                created=self._generation.identity.created,
                model=self._generation.identity.model,
                choices=[],
                usage=Usage.from_tokens(self._generation.usage()),
                system_fingerprint=self._generation.model.fingerprint,
                kv_transfer_params=self._generation.told_transfer(),
            )
            return list(encoded(completion, choices=choices))

        return await self._generation.assembled(answers, assemble)

    def _choice(self, index: int, answer: CompletionOutput) -> CompletionChoice:
        echoed = self._echoed(index)
        return CompletionChoice(
            index=index,
            text=echoed + answer.text,
            logprobs=self._logprobs_of(index, answer, echoed if self._request.echo else None),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._request.return_token_ids else msgspec.UNSET,
            prompt_token_ids=self._prompt_ids(index),
            prompt_logprobs=self._prompt_logprobs(index),
        )

    def _prompt_ids(self, index: int) -> Sequence[int] | msgspec.UnsetType:
        return self._generation.choice_prompt(index).ids.tolist() if self._request.return_token_ids else msgspec.UNSET

    def _prompt_logprobs(self, index: int) -> PromptLogprobs | None:
        if self._request.prompt_logprobs is None:
            return None
        return of_prompt(self._generation.choice_prompt_logprobs(index))

    async def events(self) -> AsyncGenerator[bytes, None]:
        writer = ChunkWriter(self._generation.identity, "text_completion", self._generation, self._request)
        begun = [False] * self._generation.num_choices
        no_ids = NO_TOKEN_IDS if self._request.return_token_ids else b""

        def write(first: int, answers: Sequence[CompletionOutput]) -> bytes:
            data = []
            for answer in answers:
                index = first + answer.index
                first_token = not begun[index]
                begun[index] = True
                echoed = self._echoed(index) if first_token and self._request.echo else None
                if first_token or answer.text or self._has_news(answer):
                    data.append(writer.chunk(index, self._piece(index, answer, echoed, begins=first_token)))
                if answer.finished:
                    data.append(writer.chunk(index, finish(index, b'"text":""', answer, no_ids)))
            return b"".join(data)

        async for first, output in self._generation.outputs():
            echoes = bool(self._request.echo) and not all(begun[first + answer.index] for answer in output.outputs)
            if is_small(output.outputs, self._generation.prompt_logprobs if echoes else ()):
                data = write(first, output.outputs)
            else:
                data = await self._generation.assembly.run(partial(write, first, output.outputs))
            if data:
                yield data
        if last := writer.last():
            yield last

    def _piece(self, index: int, answer: CompletionOutput, echoed: str | None, *, begins: bool) -> bytes:
        logprobs = self._logprobs_of(index, answer, echoed)
        encoded_logprobs = b"null" if logprobs is None else in_one_piece(logprobs, len(logprobs.tokens))
        content = b'"text":' + encode((echoed or "") + answer.text)
        ids = token_ids(answer) if self._request.return_token_ids else b""
        if begins and self._request.return_token_ids:
            ids = prompt_token_ids(self._generation.choice_prompt(index)) + ids
        return piece(index, content, encoded_logprobs, ids)

    def _has_news(self, answer: CompletionOutput) -> bool:
        """Whether there are tokens whose ids or log probabilities were requested, even if they have no text yet."""
        return bool(answer.token_ids) and (self._request.logprobs is not None or bool(self._request.return_token_ids))

    def _logprobs_of(self, index: int, answer: CompletionOutput, echoed: str | None) -> CompletionLogprobs | None:
        """echoed: the prompt's text, if this output begins with it."""
        if self._request.logprobs is None:
            return None
        logprobs = self._logprobs[index]
        if echoed is None:
            return logprobs.write(answer)
        ids, positions = (
            self._generation.choice_prompt(index).ids.tolist(),
            self._generation.choice_prompt_logprobs(index),
        )
        prompt = self._echoed_logprobs.write(index // self._generation.params.n, ids, positions, echoed)
        logprobs.after(echoed)
        return joined(prompt, logprobs.write(answer))

    def _echoed(self, index: int) -> str:
        if not self._request.echo:
            return ""
        prompt = self._generation.choice_prompt(index)
        if prompt.text is not None:
            return prompt.text
        return "" if self._tokenizer is None else self._tokenizer.decode(prompt.ids.tolist(), skip_special_tokens=True)
