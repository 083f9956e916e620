"""Whether the process lives (/livez), whether it can answer (/readyz, /health, /ping), and which version it is."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tessera._version import __version__
from tessera.server.context import ServerContext


def routes(context: ServerContext) -> list[Route]:
    async def livez(_request: Request) -> Response:
        return _answer(200, status="ok")

    async def ready(_request: Request) -> Response:
        state = engine_state(context)
        return _answer(200 if state == "ok" else 503, status=state)

    async def version(_request: Request) -> Response:
        return _answer(200, version=__version__)

    return [
        Route("/livez", livez),
        Route("/readyz", ready),
        Route("/health", ready),
        Route("/ping", ready, methods=["GET", "POST"]),
        Route("/version", version),
    ]


def engine_state(context: ServerContext) -> str:
    health = context.engine.health
    if not health.alive:
        return "engine dead"
    return "engine stalled" if health.stalled else "ok"


def _answer(code: int, **fields: str) -> Response:
    return Response(msgspec.json.encode(fields), code, media_type="application/json")
