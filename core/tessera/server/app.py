"""The application: routes, what stands before them, and what errors become."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware

from tessera.server import health, metrics
from tessera.server.access import Access
from tessera.server.context import ServerContext
from tessera.server.errors import handlers
from tessera.server.openai import chat, completions, models
from tessera.server.security import ApiKeys, BodyRules
from tessera.server.settings import ServerSettings
from tessera.text import ChatTemplate

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine


def create_app(engine: AsyncEngine, settings: ServerSettings, chat_template: ChatTemplate | None = None) -> Starlette:
    """The server of one running engine. chat_template: in place of the model's own.

    Routes are plain Starlette routes over msgspec: a request passes no layer that the answer does not need.
    """
    context = ServerContext(engine, settings, chat_template)
    families = (health, metrics, models, completions, chat)
    routes = [route for family in families for route in family.routes(context)]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        context.close()

    limits = settings.limits
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers=handlers(),
        middleware=[
            Middleware(Access, context.http_counts, frozenset(route.path for route in routes), settings.max_requests),
            Middleware(ApiKeys, settings.api_keys),
            Middleware(BodyRules, limits.body_bytes, limits.body_seconds),
        ],
    )
    # A client that adds a slash is told so: a redirect would lose its body.
    app.router.redirect_slashes = False
    return app
