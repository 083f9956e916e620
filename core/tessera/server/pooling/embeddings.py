"""POST /v1/embeddings: OpenAI's route for a vector of each text."""

from __future__ import annotations

from functools import partial

from starlette.types import Scope

from tessera.pooling_params import PoolingParams
from tessera.server.assembly import Large
from tessera.server.context import ServerContext
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.openapi import JsonRoute
from tessera.server.pooling.answers import PoolingAnswer, PoolingUsage, written
from tessera.server.pooling.encoding import VectorEncoding
from tessera.server.pooling.fields import VectorFields, input_decoder
from tessera.server.pooling.inputs import read_inputs
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.run import PoolingRun


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
        encoding = VectorEncoding.from_fields(asked)
        params = PoolingParams(request.task, dimensions=asked.dimensions, use_activation=asked.activates)
        special = asked.adds_special_tokens
        run = await PoolingRun.prepare(request, await read_inputs(request, asked), params, add_special_tokens=special)
        return PoolingAnswer(partial(_answer, run, encoding))

    return JsonRoute(
        "/v1/embeddings",
        GenerationEndpoint(read, context),
        "A vector for each text.",
        methods=("POST",),
        body=EmbeddingRequest,
        answer=EmbeddingList,
    )


async def _answer(run: PoolingRun, encoding: VectorEncoding) -> list[bytes]:
    outputs, identity = await run.outputs(), run.request.identity
    usage = PoolingUsage.from_tokens(run.usage())
    answer = EmbeddingList(id=identity.id, created=identity.created, model=identity.model, data=[], usage=usage)
    data = (EmbeddingObject(index=index, embedding=encoding.write(vector)) for index, vector in enumerate(outputs))
    return await written(run.request.context.assembly, answer, data, run.num_numbers)
