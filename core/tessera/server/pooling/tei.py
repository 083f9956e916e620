"""The routes of Text Embeddings Inference, Hugging Face's server: /embed, /embed_all, /similarity, /rerank and
/predict."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from starlette.types import Scope

from tessera.arrays import Array
from tessera.engine.scoring import SCORING_TASKS
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tessera.server.context import ServerContext
from tessera.server.decode import Envelope, RequestDecoder, decoded
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.openapi import JsonRoute, field_schema
from tessera.server.pooling.answers import PoolingAnswer, written_list
from tessera.server.pooling.fields import Dimensions, PoolingFields, PromptName
from tessera.server.pooling.inputs import PooledInput, listed, listed_items, search_instructions, with_instruction
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.rerank import ranked
from tessera.server.pooling.run import PoolingRun
from tessera.server.pooling.scores import PairScores
from tessera.server.prompt_field import PromptField, prompt_schema
from tessera.server.settings import Limits
from tessera.text_pair import TextPair

T = TypeVar("T", bound="TeiFields")
_SIDES = ("Left", "Right")
_SEQUENCES = msgspec.json.Decoder(str | list[str | list[str]])


class TeiFields(msgspec.Struct, kw_only=True):
    """What all requests of this API have in common. null is the same as leaving a field out."""

    truncate: bool | None = None
    truncation_direction: Annotated[str, field_schema(enum=[*_SIDES])] | None = None

    def pooling_fields(self) -> PoolingFields:
        """As the other routes call them. Raises RequestError."""
        if self.truncation_direction not in (None, *_SIDES):
            raise RequestError("truncation_direction must be Left or Right.", param="truncation_direction")
        side = None if self.truncation_direction is None else self.truncation_direction.lower()
        return PoolingFields(truncate_prompt_tokens=-1 if self.truncate else None, truncation_side=side)


class TeiEmbedRequest(TeiFields, kw_only=True):
    """Texts to make vectors of."""

    inputs: Annotated[Raw, prompt_schema(Limits.pooled_inputs)]
    normalize: bool | None = None
    prompt_name: PromptName | None = None
    dimensions: Dimensions | None = None


class TeiEmbedAllRequest(TeiFields, kw_only=True):
    """Texts to make a vector of each token of."""

    inputs: Annotated[Raw, prompt_schema(Limits.pooled_inputs)]
    prompt_name: PromptName | None = None


class TeiSimilarityInputs(msgspec.Struct):
    source_sentence: str
    sentences: Annotated[list[str], field_schema(minItems=1, maxItems=Limits.pooled_inputs)]


class TeiSimilarityParameters(TeiFields, kw_only=True):
    prompt_name: PromptName | None = None


class TeiSimilarityRequest(msgspec.Struct, kw_only=True):
    """A text, and others to compare it with."""

    inputs: TeiSimilarityInputs
    parameters: TeiSimilarityParameters | None = None


class TeiRerankRequest(TeiFields, kw_only=True):
    """A query, and texts to put in order."""

    query: str
    texts: Annotated[list[str], field_schema(minItems=1, maxItems=Limits.pooled_inputs)]
    raw_scores: bool | None = None
    return_text: bool | None = None


class TeiPredictRequest(TeiFields, kw_only=True):
    """A text to classify, a list of one text or of a pair of them, or a list of such lists."""

    inputs: Annotated[Raw, field_schema(anyOf=[{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}])]
    raw_scores: bool | None = None


class TeiRank(msgspec.Struct, kw_only=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


class TeiPrediction(msgspec.Struct, kw_only=True):
    score: float
    label: str


def routes(context: ServerContext) -> list[JsonRoute]:
    return [_embed(context), _embed_all(context), _similarity(context), _predict(context)]


# ---- vectors --------------------------------------------------------------------------------------------------------


def _embed(context: ServerContext) -> JsonRoute:
    decoder = _decoder(context, TeiEmbedRequest)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        params = PoolingParams("embed", dimensions=asked.dimensions, use_activation=asked.normalize is not False)
        return await _vectors(context, asked, asked.inputs, asked.prompt_name, params, scope)

    return JsonRoute(
        "/embed",
        GenerationEndpoint(read, context),
        "A vector for each text, by the API of Text Embeddings Inference.",
        methods=("POST",),
        body=TeiEmbedRequest,
        answer=list[list[float]],
    )


def _embed_all(context: ServerContext) -> JsonRoute:
    decoder = _decoder(context, TeiEmbedAllRequest)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        params = PoolingParams("token_embed", use_activation=False)
        return await _vectors(context, asked, asked.inputs, asked.prompt_name, params, scope)

    return JsonRoute(
        "/embed_all",
        GenerationEndpoint(read, context),
        "A vector for each token of each text, by the API of Text Embeddings Inference.",
        methods=("POST",),
        body=TeiEmbedAllRequest,
        answer=list[list[list[float]]],
    )


def _decoder(context: ServerContext, kind: type[T]) -> RequestDecoder[T]:
    limits = context.settings.limits
    field = _field(limits)

    def check(envelope: Envelope) -> None:
        field.check(envelope, limits, context.engine.info.max_model_len)

    large, also = {"inputs": limits.body_bytes}, ("truncate_prompt_tokens",)
    return RequestDecoder(context, kind, {}, large, further=check, also=also)


def _field(limits: Limits) -> PromptField:
    return PromptField("inputs", limits.pooled_inputs, "texts")


async def _vectors(
    context: ServerContext,
    fields: TeiFields,
    raw: Raw,
    prompt_name: str | None,
    params: PoolingParams,
    scope: Scope,
) -> PoolingAnswer:
    """raw: the field `inputs`. Raises RequestError, TextWorkerError."""
    request = PoolingRequest.from_fields(context, fields.pooling_fields(), scope, "embd", params.task)
    inputs = listed("inputs", await _field(context.settings.limits).read(raw, context.assembly))
    run = await PoolingRun.prepare(request, with_instruction(request, inputs, prompt_name), params)

    async def answer() -> list[bytes]:
        outputs = await run.outputs()
        return await written_list(context.assembly, (values.tolist() for values in outputs), run.num_numbers)

    return PoolingAnswer(answer)


# ---- scores ---------------------------------------------------------------------------------------------------------


def _similarity(context: ServerContext) -> JsonRoute:
    limits = context.settings.limits
    decoder = RequestDecoder(context, TeiSimilarityRequest, {}, {"inputs": limits.body_bytes})

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        how = asked.parameters or TeiSimilarityParameters()
        request = PoolingRequest.from_fields(context, how.pooling_fields(), scope, "score", "embed")
        source = [PooledInput("inputs.source_sentence", asked.inputs.source_sentence)]
        sentences = listed_items("inputs.sentences", asked.inputs.sentences, limits)
        names = (how.prompt_name, how.prompt_name)
        pairs = await PairScores.prepare(request, source, sentences, instructions=names)
        return PoolingAnswer(partial(_scores, pairs))

    return JsonRoute(
        "/similarity",
        GenerationEndpoint(read, context),
        "The cosine of a text's vector with those of others, by the API of Text Embeddings Inference.",
        methods=("POST",),
        body=TeiSimilarityRequest,
        answer=list[float],
    )


async def _scores(pairs: PairScores) -> list[bytes]:
    return [msgspec.json.encode(await pairs.scores())]


def rerank_route(context: ServerContext) -> JsonRoute:
    limits = context.settings.limits
    decoder = RequestDecoder(
        context, TeiRerankRequest, {}, {"texts": limits.body_bytes, "query": limits.body_bytes}
    )  # fmt: skip

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = PoolingRequest.from_fields(context, asked.pooling_fields(), scope, "rerank", *SCORING_TASKS)
        query, texts = [PooledInput("query", asked.query)], listed_items("texts", asked.texts, limits)
        activation = False if asked.raw_scores else None
        names = search_instructions(request)
        pairs = await PairScores.prepare(request, query, texts, use_activation=activation, instructions=names)
        return PoolingAnswer(partial(_ranks, pairs, asked.texts if asked.return_text else None))

    return JsonRoute(
        "/rerank",
        GenerationEndpoint(read, context),
        "Texts in the order in which they answer a query, by the API of Text Embeddings Inference.",
        methods=("POST",),
        body=TeiRerankRequest,
        answer=list[TeiRank],
    )


async def _ranks(pairs: PairScores, texts: Sequence[str] | None) -> list[bytes]:
    """texts: if ranks show them."""
    scores = await pairs.scores()
    ranks = [
        TeiRank(index=index, score=scores[index], text=UNSET if texts is None else texts[index])
        for index in ranked(scores)
    ]
    return [msgspec.json.encode(ranks)]


# ---- classes --------------------------------------------------------------------------------------------------------


def _predict(context: ServerContext) -> JsonRoute:
    limits = context.settings.limits
    decoder = RequestDecoder(context, TeiPredictRequest, {}, {"inputs": limits.body_bytes})

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = PoolingRequest.from_fields(context, asked.pooling_fields(), scope, "predict", "classify")
        inputs, several = _sequences(asked.inputs, limits)
        params = PoolingParams(request.task, use_activation=False if asked.raw_scores else None)
        run = await PoolingRun.prepare(request, inputs, params)
        return PoolingAnswer(partial(_predictions, run, several=several))

    return JsonRoute(
        "/predict",
        GenerationEndpoint(read, context),
        "The probabilities of the model's labels, by the API of Text Embeddings Inference.",
        methods=("POST",),
        body=TeiPredictRequest,
        answer=list[list[TeiPrediction]],
    )


def _sequences(raw: Raw, limits: Limits) -> tuple[list[PooledInput], bool]:
    """The texts and pairs, and whether they are a list of several. Raises RequestError."""
    asked = decoded(_SEQUENCES, bytes(raw), "inputs")
    if isinstance(asked, str):
        return [PooledInput("inputs", asked)], False
    if not asked:
        raise RequestError("inputs must not be empty.", param="inputs")
    texts = [one for one in asked if isinstance(one, str)]
    if texts == asked:
        return [_sequence(texts, "inputs")], False
    if len(asked) > limits.pooled_inputs:
        most = limits.pooled_inputs
        raise RequestError(f"inputs must have at most {most} texts, got {len(asked)}.", param="inputs")
    sequences = [[one] if isinstance(one, str) else one for one in asked]
    return [_sequence(one, f"inputs[{index}]") for index, one in enumerate(sequences)], True


def _sequence(texts: Sequence[str], place: str) -> PooledInput:
    if len(texts) == 1:
        return PooledInput(place, texts[0])
    if len(texts) == 2:
        return PooledInput(place, TextPair(*texts))
    raise RequestError(f"{place} must be one text or a pair of texts, got {len(texts)}.", param=place)


async def _predictions(run: PoolingRun, *, several: bool) -> list[bytes]:
    """several: the request is a list of texts, and so is the answer."""
    labels = run.request.pooler.labels
    predictions = [_prediction(output, labels) for output in await run.outputs()]
    return [msgspec.json.encode(predictions if several else predictions[0])]


def _prediction(output: Array, labels: Sequence[str]) -> list[TeiPrediction]:
    """The labels, from the likeliest one on."""
    scores = output.tolist()
    return [
        TeiPrediction(score=scores[index], label=labels[index] if index < len(labels) else f"LABEL_{index}")
        for index in ranked(scores)
    ]
