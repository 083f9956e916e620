"""GET /v1/models and /v1/models/{model}."""

from __future__ import annotations

import uuid

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tessera.server.context import ServerContext
from tessera.server.openai.protocol import Model, ModelList, ModelPermission


def routes(context: ServerContext) -> list[Route]:
    root = context.model_names[0]
    max_model_len = context.engine.info.max_model_len
    permission = [ModelPermission(id=f"modelperm-{uuid.uuid4().hex}", created=context.created)]
    served = {
        name: Model(id=name, created=context.created, root=root, max_model_len=max_model_len, permission=permission)
        for name in context.model_names
    }

    async def models(_request: Request) -> Response:
        return _json(ModelList(data=list(served.values())))

    async def model(request: Request) -> Response:
        name = request.path_params["model"]
        context.check_name(name)
        return _json(served[name])

    return [Route("/v1/models", models), Route("/v1/models/{model:path}", model)]


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
