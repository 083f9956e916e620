"""The models in the form of Anthropic's API (https://docs.claude.com/en/api/models-list). Its paths are OpenAI's too: a
header that Anthropic's clients send says which of them is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request

from tessera.errors import NotFoundError, RequestError
from tessera.server.context import ServerContext
from tessera.server.paging import PageQuery

VERSION = b"anthropic-version"
"""The header that all of Anthropic's clients send."""
_MAX_LIMIT = 1000
_ACTIVE = "active"


class ModelInfo(msgspec.Struct, kw_only=True):
    """created_at: when the server started, by RFC 3339. max_input_tokens, max_tokens: of a prompt and an answer."""

    id: str
    created_at: str
    display_name: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: str = _ACTIVE
    type: str = "model"


class ModelPage(msgspec.Struct):
    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool


def model_infos(context: ServerContext, names: Iterable[str]) -> dict[str, ModelInfo]:
    """By their names."""
    started = datetime.fromtimestamp(context.created, UTC).isoformat()
    most = context.engine.info.max_model_len
    longest = min(most, context.settings.answers.maximum or most)
    return {
        name: ModelInfo(id=name, created_at=started, display_name=name, max_input_tokens=most, max_tokens=longest)
        for name in names
    }


def page_of(infos: Mapping[str, ModelInfo], request: Request) -> ModelPage:
    """The page that the query asks for. Raises RequestError, NotFoundError."""
    limit = PageQuery.from_request(request, min_limit=1, max_limit=_MAX_LIMIT).limit
    stages = request.query_params.getlist("lifecycle[]")
    found = list(infos.values()) if not stages or _ACTIVE in stages else []
    names = [info.id for info in found]
    after, before = _place(names, request, "after_id"), _place(names, request, "before_id")
    if after is not None and before is not None:
        raise RequestError("after_id and before_id cannot be combined: leave out one of them.", param="before_id")
    if before is None:
        begin = 0 if after is None else after + 1
        page, has_more = found[begin : begin + limit], begin + limit < len(found)
    else:
        page, has_more = found[max(before - limit, 0) : before], limit < before
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return ModelPage(page, first, last, has_more)


def _place(names: Sequence[str], request: Request, parameter: str) -> int | None:
    """The place of the model that this parameter of the query names."""
    asked = request.query_params.get(parameter)
    if asked is None:
        return None
    if asked not in names:
        raise NotFoundError(f"There is no model with the id in {parameter}.", param=parameter)
    return names.index(asked)
