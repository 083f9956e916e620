"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec.json import encode
from starlette.routing import Route

from tessera.errors import RequestError
from tessera.request import CompletionOutput
from tessera.server.context import ServerContext
from tessera.server.openai import chunks, not_served
from tessera.server.openai.chunks import ChunkWriter
from tessera.server.openai.decode import RequestDecoder
from tessera.server.openai.endpoint import GenerationEndpoint
from tessera.server.openai.generation import Generation, Identity, collect
from tessera.server.openai.logprobs import LogprobWriter
from tessera.server.openai.prompts import check_counts, read_prompts
from tessera.server.openai.protocol import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from tessera.server.openai.sampling import check_common, sampling_params

DEFAULT_MAX_TOKENS = 16


def routes(context: ServerContext) -> list[Route]:
    limits = context.settings.limits
    decoder = RequestDecoder(
        CompletionRequest,
        {**not_served.GENERATION, **not_served.COMPLETIONS},
        large={"prompt": limits.body_bytes},
        other_bytes=limits.other_bytes,
        further=lambda envelope: check_counts(envelope.raw("prompt"), limits, context.engine.info.max_model_len),
    )

    async def read(body: bytes) -> CompletionAnswer:
        request = decoder.decode(body)
        check_common(request, limits)
        context.check_model(request.model)
        params = sampling_params(
            request,
            context.settings.default_sampling,
            max_tokens=context.settings.answers.capped(
                DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
            ),
            logprobs=_logprobs(request, limits.top_logprobs),
            detokenize=context.engine.tokenizer is not None,
        )
        if request.best_of not in (None, params.n):
            raise RequestError("best_of is not served: leave it out or make it equal to n.", param="best_of")
        prompts = await read_prompts(context, request.prompt, request.add_special_tokens is not False)
        identity = Identity.of("cmpl", request)
        generation = Generation(context, request, prompts, params, identity.id)
        return CompletionAnswer(context, request, identity, generation)

    return [Route("/v1/completions", GenerationEndpoint(read, context.load), methods=["POST"])]


def _logprobs(request: CompletionRequest, most: int) -> int | None:
    if request.logprobs is not None and not 0 <= request.logprobs <= most:
        raise RequestError(f"logprobs must be 0 to {most}, got {request.logprobs}.", param="logprobs")
    if request.logprobs is not None and request.echo:
        raise RequestError("echo together with logprobs is not served yet: leave out one of them.", param="echo")
    return request.logprobs


class CompletionAnswer:
    """One request's answers, whole or as a stream."""

    def __init__(
        self, context: ServerContext, request: CompletionRequest, identity: Identity, generation: Generation
    ) -> None:
        self.stream = bool(request.stream)
        self._request = request
        self._identity = identity
        self._generation = generation
        self._tokenizer = context.engine.tokenizer
        self._logprobs = LogprobWriter(self._tokenizer, request.logprobs or 0)

    async def whole(self) -> Completion:
        answers = await collect(self._generation)
        return Completion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            usage=self._generation.usage(),
        )

    def _choice(self, index: int, answer: CompletionOutput) -> CompletionChoice:
        echoed = self._echoed(index)
        return CompletionChoice(
            index=index,
            text=echoed + answer.text,
            logprobs=self._logprobs_of(answer, 0),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._request.return_token_ids else msgspec.UNSET,
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        writer = ChunkWriter(self._identity, "text_completion", self._generation, self._request)
        offsets = [-1] * self._generation.num_choices
        async for first, output in self._generation.outputs():
            data = []
            for answer in output.outputs:
                index = first + answer.index
                text = answer.text
                if offsets[index] < 0:
                    offsets[index] = 0
                    text = self._echoed(index) + text
                if text or self._has_news(answer):
                    data.append(writer.chunk(self._piece(index, text, answer, offsets)))
                if answer.finished:
                    data.append(writer.chunk(chunks.finish(index, b'"text":""', answer)))
            if data:
                yield b"".join(data)
        if last := writer.last():
            yield last

    def _piece(self, index: int, text: str, answer: CompletionOutput, offsets: list[int]) -> bytes:
        logprobs = self._logprobs_of(answer, offsets[index])
        if logprobs is not None:
            offsets[index] += sum(map(len, logprobs.tokens))
        content = b'"text":' + encode(text)
        ids = chunks.token_ids(answer) if self._request.return_token_ids else b""
        return chunks.piece(index, content, encode(logprobs), ids)

    def _has_news(self, answer: CompletionOutput) -> bool:
        """Tokens that no text shows, or not yet, and that were asked for."""
        return bool(answer.token_ids) and (self._request.logprobs is not None or bool(self._request.return_token_ids))

    def _logprobs_of(self, answer: CompletionOutput, offset: int) -> CompletionLogprobs | None:
        return None if self._request.logprobs is None else self._logprobs.completion(answer, offset)

    def _echoed(self, index: int) -> str:
        if not self._request.echo:
            return ""
        prompt = self._generation.prompt_of(index)
        if prompt.text is not None:
            return prompt.text
        return "" if self._tokenizer is None else self._tokenizer.decode(prompt.token_ids, skip_special_tokens=True)
