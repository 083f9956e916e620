"""The application: routes, what stands before them, and what errors become."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware

from tessera.server import health, load, metrics, tokenization
from tessera.server.access import Access
from tessera.server.bodies import BodyRules
from tessera.server.context import ServerContext
from tessera.server.cors import Cors
from tessera.server.errors import handlers
from tessera.server.hosts import Hosts
from tessera.server.keep_alive import KeepAlive
from tessera.server.key_tenants import KeyTenants
from tessera.server.openai import chat, completions, models
from tessera.server.per_key import PerKey
from tessera.server.prefix import RootPath
from tessera.server.security import ApiKeys
from tessera.server.settings import ServerSettings
from tessera.text import ChatTemplate

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine


def create_app(engine: AsyncEngine, settings: ServerSettings, chat_template: ChatTemplate | None = None) -> Starlette:
    """The server of one running engine. chat_template: in place of the model's own.

    Routes are plain Starlette routes over msgspec: a request passes no layer that the answer does not need.
    """
    context = ServerContext(engine, settings, chat_template)
    families = (health, load, metrics, models, completions, chat, tokenization)
    routes = [route for family in families for route in family.routes(context)]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        context.close()

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers=handlers(),
        middleware=list(_middleware(context, frozenset(route.path for route in routes))),
    )
    # A client that adds a slash is told so: a redirect would lose its body.
    app.router.redirect_slashes = False
    return app


def _middleware(context: ServerContext, paths: frozenset[str]) -> Iterator[Middleware]:
    """What stands before the routes, outermost first; what is not set is not there."""
    settings = context.settings
    if settings.root_path:
        yield Middleware(RootPath, settings.root_path)
    yield Middleware(Access, context.http_counts, paths, settings.max_requests)
    if settings.allowed_hosts:
        yield Middleware(Hosts, settings.allowed_hosts)
    # Before the key: a browser asks what a page may do without sending it.
    if settings.cors is not None:
        yield Middleware(Cors, settings.cors)
    if settings.api_keys:
        yield Middleware(ApiKeys, settings.api_keys)
    if len(set(settings.api_keys)) > 1:
        yield Middleware(KeyTenants)
    if settings.max_requests_per_key is not None:
        yield Middleware(PerKey, settings.max_requests_per_key)
    yield Middleware(BodyRules, settings.limits)
    if settings.sse_keep_alive_seconds:
        yield Middleware(KeepAlive, settings.sse_keep_alive_seconds)
