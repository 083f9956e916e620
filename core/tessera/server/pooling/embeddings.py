"""POST /v1/embeddings: OpenAI's route for a vector of each text."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.types import Scope

from tessera.server.assembly import Large
from tessera.server.context import ServerContext
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.openapi import JsonRoute
from tessera.server.pooling.answers import PoolingAnswer, PoolingUsage
from tessera.server.pooling.fields import VectorFields, input_decoder
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.text_numbers import TextNumbers


class EmbeddingRequest(VectorFields, kw_only=True):
    """Texts to make vectors of: a text, token ids, or a list of either; or the messages of a chat. null is the same as
    leaving a field out."""


class EmbeddingObject(Large, kw_only=True):
    """embedding: numbers, or base64 of their bytes."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Large, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[EmbeddingObject]
    usage: PoolingUsage


def route(context: ServerContext) -> JsonRoute:
    decoder = input_decoder(context, EmbeddingRequest)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = PoolingRequest.from_fields(context, asked, scope, "embd", "embed")
        numbers = await TextNumbers.prepare(request, asked)
        return PoolingAnswer(partial(numbers.answer, EmbeddingList, _element))

    return JsonRoute(
        "/v1/embeddings",
        GenerationEndpoint(read, context),
        "A vector for each text.",
        methods=("POST",),
        body=EmbeddingRequest,
        answer=EmbeddingList,
    )


def _element(index: int, vector: Any) -> EmbeddingObject:
    return EmbeddingObject(index=index, embedding=vector)
