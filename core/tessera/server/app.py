"""The application: its routes, what a request passes before it reaches one, and what errors become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.server import status, tokenization
from tessera.server.access import Access
from tessera.server.context import ServerContext
from tessera.server.http import error_handlers
from tessera.server.limits import BodyLimits, RequestsPerKey
from tessera.server.openai import chat, completions
from tessera.server.openapi import docs_routes
from tessera.server.security import ApiKeys, Cors, Hosts
from tessera.server.settings import ServerSettings
from tessera.server.sse import KeepAlive

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine


def create_app(engine: AsyncEngine, settings: ServerSettings) -> FastAPI:
    """The server of one running engine.

    A route is a JsonRoute: bodies are decoded by msgspec once, and nothing of FastAPI's own reading is on the way of a
    request.
    """
    context = ServerContext(engine, settings)
    routes: list[Route] = [
        route for family in (chat, completions, tokenization, status) for route in family.routes(context)
    ]
    if not settings.disable_fastapi_docs:
        # Asked for later: plugins add routes.
        routes += docs_routes(lambda: app.routes, guarded=bool(settings.api_keys), root_path=settings.root_path)

    app = FastAPI(
        routes=[*routes],
        middleware=list(_middleware(context, frozenset(route.path for route in routes))),
        exception_handlers=error_handlers(),
        # A client that adds a slash is told so: a redirect would lose its body.
        redirect_slashes=False,
        # FastAPI's own document and pages, which load scripts from another host; docs_routes has ours.
        openapi_url=None,
        # Nothing is reported to anybody, whatever the environment says.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    return app


def _middleware(context: ServerContext, paths: frozenset[str]) -> Iterator[Middleware]:
    """What stands before the routes, outermost first; what is off is not there."""
    settings = context.settings
    if settings.root_path:
        yield Middleware(RootPath, settings.root_path)
    yield Middleware(Access, context.counts, paths, settings.max_requests)
    if settings.allowed_hosts:
        yield Middleware(Hosts, settings.allowed_hosts)
    # Before the key: a browser asks what a page may do without sending it.
    if settings.cors is not None:
        yield Middleware(Cors, settings.cors)
    if settings.api_keys:
        yield Middleware(ApiKeys, settings.api_keys)
    if settings.max_requests_per_key is not None:
        yield Middleware(RequestsPerKey, settings.max_requests_per_key)
    yield Middleware(BodyLimits, settings.limits)
    if settings.sse_keep_alive_seconds:
        yield Middleware(KeepAlive, settings.sse_keep_alive_seconds)


class RootPath:
    """ASGI middleware: takes a proxy's path prefix off where the proxy leaves it on, before anything looks at the
    path."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(f"{self._prefix}/"):
            scope["path"] = path.removeprefix(self._prefix)
        await self._app(scope, receive, send)
