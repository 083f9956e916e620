"""Ollama's routes for vectors of texts: /api/embed, and /api/embeddings, which is older."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import Raw
from starlette.types import Scope

from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tessera.server.assembly import Large
from tessera.server.context import ServerContext
from tessera.server.decode import Envelope, RequestDecoder
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.ollama.chat import name_of
from tessera.server.openapi import JsonRoute, field_schema
from tessera.server.pooling.answers import PoolingAnswer
from tessera.server.pooling.fields import Dimensions, PoolingFields
from tessera.server.pooling.inputs import PooledInput, listed, with_instruction
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.run import PoolingRun
from tessera.server.prompt_field import PromptField
from tessera.server.settings import Limits

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": Limits.pooled_inputs}


class EmbedRequest(msgspec.Struct, kw_only=True):
    """Texts to make vectors of. truncate: cut what is too long at its end; true unless it is false."""

    model: str
    input: Annotated[Raw, field_schema(anyOf=[_TEXT, _TEXTS])]
    truncate: bool | None = None
    dimensions: Dimensions | None = None
    options: dict[str, Any] | None = None


class OldEmbedRequest(msgspec.Struct, kw_only=True):
    """A text to make a vector of."""

    model: str
    prompt: Annotated[str, field_schema(minLength=1)]
    options: dict[str, Any] | None = None


class EmbedAnswer(Large, kw_only=True):
    """Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OldEmbedAnswer(msgspec.Struct):
    embedding: list[float]


def routes(context: ServerContext) -> list[JsonRoute]:
    return [_embed(context), _old_embed(context)]


def _embed(context: ServerContext) -> JsonRoute:
    limits = context.settings.limits
    field = PromptField("input", limits.pooled_inputs, "texts")

    def check(envelope: Envelope) -> None:
        field.check(envelope, limits, context.engine.info.max_model_len)

    large, also = {"input": limits.body_bytes}, ("truncate_prompt_tokens",)
    decoder = RequestDecoder(context, EmbedRequest, {}, large, further=check, also=also)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = _request(context, asked.model, scope, cuts=asked.truncate is not False)
        prompts = await field.read(asked.input, context.assembly)
        if prompts.ids:
            raise RequestError("input must be a text, or a list of texts.", param="input")
        params = PoolingParams("embed", dimensions=asked.dimensions)
        run = await PoolingRun.prepare(request, with_instruction(request, listed("input", prompts), None), params)
        began = time.monotonic_ns()

        async def answer() -> EmbedAnswer:
            vectors = [output.tolist() for output in await run.outputs()]
            return EmbedAnswer(
                model=request.identity.model,
                embeddings=vectors,
                total_duration=time.monotonic_ns() - began,
                prompt_eval_count=run.usage().num_prompt_tokens,
            )

        return PoolingAnswer(answer)

    return JsonRoute(
        "/api/embed",
        GenerationEndpoint(read, context),
        "A vector for each text, by Ollama's API.",
        methods=("POST",),
        body=EmbedRequest,
        answer=EmbedAnswer,
    )


def _old_embed(context: ServerContext) -> JsonRoute:
    decoder = RequestDecoder(context, OldEmbedRequest, {}, {"prompt": context.settings.limits.body_bytes})

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = _request(context, asked.model, scope, cuts=True)
        inputs = with_instruction(request, [PooledInput("prompt", asked.prompt)], None)
        run = await PoolingRun.prepare(request, inputs, PoolingParams("embed"))

        async def answer() -> OldEmbedAnswer:
            (vector,) = await run.outputs()
            return OldEmbedAnswer(vector.tolist())

        return PoolingAnswer(answer)

    return JsonRoute(
        "/api/embeddings",
        GenerationEndpoint(read, context),
        "A vector for a text, by Ollama's older API.",
        methods=("POST",),
        body=OldEmbedRequest,
        answer=OldEmbedAnswer,
    )


def _request(context: ServerContext, model: str, scope: Scope, *, cuts: bool) -> PoolingRequest:
    """cuts: a text that is too long is cut at its end. Raises RequestError, NotFoundError, EngineDeadError."""
    fields = PoolingFields(model=name_of(context, model), truncate_prompt_tokens=-1 if cuts else None)
    return PoolingRequest.from_fields(context, fields, scope, "embd", "embed")
