"""POST /score: vLLM's route for how well pairs of texts belong together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
from starlette.types import Scope

from tessera.engine.scoring import SCORING_TASKS
from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.prepare import Identity
from tessera.server.openapi import JsonRoute, field_schema
from tessera.server.pooling.answers import PoolingAnswer, PoolingUsage
from tessera.server.pooling.fields import UNSERVED, InputItem, PoolingFields
from tessera.server.pooling.inputs import PooledInput, item_input, listed_items, search_instructions
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.scores import NO_INSTRUCTIONS, PairScores
from tessera.server.settings import Limits

_Items = str | InputItem | Annotated[list[str | InputItem], field_schema(minItems=1, maxItems=Limits.pooled_inputs)]
_SEARCH = ("queries", "documents")
_NAMES = (("text_1", "text_2"), _SEARCH, ("queries", "items"), ("data_1", "data_2"))
"""What the fields of the two texts may be called."""


class ScoreRequest(PoolingFields, kw_only=True):
    """Pairs of texts or images: text_1 and text_2, or queries and documents. One with one, one with each of several, or
    each of several with the one in its place."""

    text_1: _Items | None = None
    text_2: _Items | None = None
    queries: _Items | None = None
    documents: _Items | None = None
    items: _Items | None = None
    data_1: _Items | None = None
    data_2: _Items | None = None


class PairScore(msgspec.Struct, kw_only=True):
    index: int
    object: str = "score"
    score: float


class ScoreList(msgspec.Struct, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: PoolingUsage


def routes(context: ServerContext) -> list[JsonRoute]:
    limits = context.settings.limits
    fields = {name: limits.body_bytes for names in _NAMES for name in names}
    decoder = RequestDecoder(context, ScoreRequest, UNSERVED, fields)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = PoolingRequest.from_fields(context, asked, scope, "score", *SCORING_TASKS)
        names = _names(asked)
        first, second = (_inputs(name, getattr(asked, name), limits) for name in names)
        if len(first) not in (1, len(second)):
            text = f"{names[0]} must be one text or as many as {names[1]}, got {len(first)} and {len(second)}."
            raise RequestError(text, param=names[0])
        activation = asked.use_activation
        instructions = search_instructions(request) if names == _SEARCH else NO_INSTRUCTIONS
        pairs = await PairScores.prepare(request, first, second, use_activation=activation, instructions=instructions)
        return PoolingAnswer(partial(_answer, pairs, request.identity))

    score = JsonRoute(
        "/score",
        GenerationEndpoint(read, context),
        "How well texts belong together.",
        methods=("POST",),
        body=ScoreRequest,
        answer=ScoreList,
    )
    return [score, score.at("/v1/score")]


async def _answer(pairs: PairScores, identity: Identity) -> ScoreList:
    data = [PairScore(index=index, score=score) for index, score in enumerate(await pairs.scores())]
    usage = PoolingUsage.from_tokens(pairs.usage())
    return ScoreList(id=identity.id, created=identity.created, model=identity.model, data=data, usage=usage)


def _names(request: ScoreRequest) -> tuple[str, str]:
    """The names of the two fields that the request has. Raises RequestError."""
    sent = {name for names in _NAMES for name in names if getattr(request, name) is not None}
    for names in _NAMES:
        if sent == set(names):
            return names
    raise RequestError("Send either text_1 and text_2, or queries and documents.", param=min(sent, default="text_1"))


def _inputs(name: str, items: str | InputItem | Sequence[str | InputItem], limits: Limits) -> list[PooledInput]:
    if isinstance(items, str | InputItem):
        return [item_input(name, items)]
    return listed_items(name, items, limits)
