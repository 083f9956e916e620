"""POST /pooling: vLLM's route for the numbers of any task, those of each token among them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from starlette.types import Scope

from tessera.config.pooler import TASKS, PoolingTask
from tessera.errors import RequestError
from tessera.server.assembly import Large
from tessera.server.context import ServerContext
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.openapi import JsonRoute, field_schema
from tessera.server.pooling.answers import PoolingAnswer, PoolingUsage
from tessera.server.pooling.fields import VectorFields, input_decoder
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.text_numbers import TextNumbers


class PoolRequest(VectorFields, kw_only=True):
    """Texts to make numbers of: a text, token ids, or a list of either; or the messages of a chat. task: if it is left
    out, the first that the model has. null is the same as leaving a field out."""

    task: Annotated[str, field_schema(enum=[*TASKS])] | None = None


class PooledObject(Large, kw_only=True):
    """data: numbers, of a task of tokens a list of them for each token; or base64 of their bytes."""

    index: int
    object: str = "pooling"
    data: list[float | list[float]] | str


class PooledList(Large, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[PooledObject]
    usage: PoolingUsage


def route(context: ServerContext) -> JsonRoute:
    decoder = input_decoder(context, PoolRequest)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = PoolingRequest.from_fields(context, asked, scope, "pool", *_tasks(asked.task, context))
        numbers = await TextNumbers.prepare(request, asked)
        return PoolingAnswer(partial(numbers.answer, PooledList, _element))

    return JsonRoute(
        "/pooling",
        GenerationEndpoint(read, context),
        "What the model makes of each text, or of each of its tokens.",
        methods=("POST",),
        body=PoolRequest,
        answer=PooledList,
    )


def _tasks(name: str | None, context: ServerContext) -> tuple[PoolingTask, ...]:
    """Those that answer the request. Raises RequestError."""
    if name is None:
        pooler = context.engine.config.model.pooler
        named = () if pooler is None else tuple(task for task in pooler.tasks if task in TASKS)
        return named or TASKS
    for task in TASKS:
        if task == name:
            return (task,)
    raise RequestError(f"task must be one of {', '.join(TASKS)}.", param="task")


def _element(index: int, numbers: Any) -> PooledObject:
    return PooledObject(index=index, data=numbers)
