"""POST /classify: vLLM's route for the probabilities of a model's labels."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.types import Scope

from tessera.arrays import Array
from tessera.pooling_params import PoolingParams
from tessera.server.context import ServerContext
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.openapi import JsonRoute
from tessera.server.pooling.answers import PoolingAnswer, PoolingUsage
from tessera.server.pooling.fields import InputFields, input_decoder
from tessera.server.pooling.inputs import read_inputs
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.run import PoolingRun


class ClassifyRequest(InputFields, kw_only=True):
    """Texts to classify: a text, token ids, or a list of either; or the messages of a chat. null is the same as leaving
    a field out."""


class Classification(msgspec.Struct, kw_only=True):
    """label: the likeliest; null if the model does not name its labels. probs: of each label, in the model's order."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassificationList(msgspec.Struct, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Classification]
    usage: PoolingUsage


def route(context: ServerContext) -> JsonRoute:
    decoder = input_decoder(context, ClassifyRequest)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = PoolingRequest.from_fields(context, asked, scope, "classify", "classify")
        params, special = PoolingParams(request.task, use_activation=asked.use_activation), asked.adds_special_tokens
        run = await PoolingRun.prepare(request, await read_inputs(request, asked), params, add_special_tokens=special)
        return PoolingAnswer(partial(_answer, run))

    return JsonRoute(
        "/classify",
        GenerationEndpoint(read, context),
        "The probabilities of the model's labels.",
        methods=("POST",),
        body=ClassifyRequest,
        answer=ClassificationList,
    )


async def _answer(run: PoolingRun) -> ClassificationList:
    labels, identity = run.request.pooler.labels, run.request.identity
    data = [_classification(index, output, labels) for index, output in enumerate(await run.outputs())]
    usage = PoolingUsage.from_tokens(run.usage())
    return ClassificationList(id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage)


def _classification(index: int, output: Array, labels: tuple[str, ...]) -> Classification:
    best = int(output.argmax())
    label = labels[best] if best < len(labels) else None
    return Classification(index=index, label=label, probs=output.tolist(), num_classes=len(output))
