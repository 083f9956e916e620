"""The application: its routes, middleware and error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.server import adapters, other_paths, sleep, status, tokenization
from tessera.server.access import Access
from tessera.server.adapter_copies import AdapterCopies
from tessera.server.anthropic import errors as anthropic
from tessera.server.anthropic import messages
from tessera.server.anthropic.models import VERSION
from tessera.server.audio import routes as audio
from tessera.server.batches import batches, files
from tessera.server.batches.endpoints import Endpoints, endpoint_apps
from tessera.server.batches.jobs import Jobs
from tessera.server.batches.runner import IdleRoom
from tessera.server.batches.storage import Storage
from tessera.server.context import ServerContext, ServerState
from tessera.server.decisions import routes as decisions
from tessera.server.error_forms import ErrorForms, Form
from tessera.server.http import error_handlers
from tessera.server.keys import Quota, plain_keys
from tessera.server.limits import BodyLimits, BodyRules
from tessera.server.multipart import FORM_BYTES
from tessera.server.ollama import routes as ollama
from tessera.server.openai import chat, completions, render
from tessera.server.openai.stored_chats import StoredChats
from tessera.server.openapi import docs_routes
from tessera.server.page import Page
from tessera.server.pooling import routes as pooling
from tessera.server.quotas import QuotaLimits
from tessera.server.responses import conversations
from tessera.server.responses import routes as responses
from tessera.server.security import ApiKeys, Cors, Hosts
from tessera.server.settings import ServerSettings
from tessera.server.sse import KeepAlive
from tessera.server.store import Store
from tessera.server.tracing import Traces

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine

OLLAMA = "/api/"
"""How the paths of Ollama's routes begin."""
FORMS: Mapping[str, Form] = MappingProxyType({"/v1/messages": anthropic.FORM, OLLAMA: ollama.FORM})
"""The forms of errors that differ from OpenAI's, by how the paths begin."""
FORMS_BY_HEADER: Mapping[bytes, Form] = MappingProxyType({VERSION: anthropic.FORM})
"""The same for paths that APIs share, by a header of the request."""


def create_app(engine: AsyncEngine, settings: ServerSettings) -> FastAPI:
    """Builds the application that serves one running engine.

    Its API routes are JsonRoutes: msgspec decodes each body once, and FastAPI's own parsing of requests is not used.
    """
    context = ServerContext(engine, settings)
    context.starters += [context.state.loop.start, lambda: context.state.disks.start(settings)]
    context.closers += [context.state.loop.stop, context.state.disks.stop]
    if settings.tracer is not None:
        context.closers.append(settings.tracer.close)
    store = Store(settings.response_store, settings.response_store_bytes)
    copies = AdapterCopies()
    context.closers.append(copies.close)
    others = [*adapters.routes(context, copies), *sleep.routes(context), *status.routes(context)]
    routes = model_routes(context, store, others)
    storage = Storage(settings.batch_store, settings.batch_store_bytes)
    room = IdleRoom(engine, context.counts, lambda: not storage.full)
    jobs = Jobs(settings.limits, storage, Endpoints(endpoint_apps(routes), settings.key_file, settings.tracer), room)
    context.starters.append(jobs.start)
    context.closers.append(jobs.end)
    routes += [*files.routes(storage, settings.limits, jobs.reads), *batches.routes(context, storage, jobs)]
    if not settings.disable_fastapi_docs:
        routes += docs_routes(
            lambda: app.routes,
            errors={begin: form.kind for begin, form in FORMS.items()},
            guarded=settings.guarded,
            root_path=settings.root_path,
        )
    page = None if settings.disable_ui else Page.read()
    if page is not None:
        routes.append(page.route())

    app = bare_app(
        routes,
        lambda: until_end(context, store, storage),
        middleware(settings, context.state, lambda: app.routes, page),
    )
    return app


def model_routes(context: ServerContext, store: Store, others: Iterable[Route] = ()) -> list[Route]:
    """The routes that ask a model, and others, also at the paths of other servers. store: of responses, conversations
    and chats."""
    chats = StoredChats(context, store)
    answering = chat.route(context, chats.answer)
    # Before the paths of stored chats, which have any word for an id.
    routes: list[Route] = [*render.routes(context), *chats.routes(answering)]
    for family in (completions, messages, decisions, pooling, audio, tokenization, ollama):
        routes += family.routes(context)
    routes += [*responses.routes(context, store), *conversations.routes(context, store), *others]
    return [*routes, *other_paths.routes([*routes, answering])]


def bare_app(
    routes: Iterable[BaseRoute],
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    layers: Iterable[Middleware] = (),
) -> FastAPI:
    """An application with routes that decode for themselves. layers: its middleware, outermost first."""
    return FastAPI(
        routes=[*routes],
        lifespan=lambda _: lifespan(),
        middleware=[*layers],
        exception_handlers=error_handlers(),
        # A path with a trailing slash is a 404 that says so: clients may drop the body when they follow a redirect.
        redirect_slashes=False,
        # FastAPI's own pages load scripts from another host; docs_routes() adds ours.
        openapi_url=None,
        # No telemetry is sent, whatever the environment variables say.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )


@asynccontextmanager
async def until_end(context: ServerContext, *stores: Store | Storage) -> AsyncIterator[None]:
    try:
        for start in context.starters:
            start()
        yield
    finally:
        for close in context.closers:
            await close()
        for store in stores:
            store.close()


def outermost(settings: ServerSettings) -> Iterator[Middleware]:
    """The middleware that every request meets first, also while the model is still loading."""
    if settings.root_path:
        yield Middleware(RootPath, settings.root_path)
    yield Middleware(ErrorForms, FORMS, FORMS_BY_HEADER)


def middleware(
    settings: ServerSettings, state: ServerState, all_routes: Callable[[], Sequence[BaseRoute]], page: Page | None
) -> Iterator[Middleware]:
    """The middleware, outermost first. A feature that is off adds none. all_routes: a function, because plugins add
    routes later."""
    yield from outermost(settings)
    yield Middleware(Access, state.counts, all_routes, settings.max_requests, settings.unlogged_routes)
    if settings.tracer is not None:
        yield Middleware(Traces, settings.tracer)
    if settings.allowed_hosts:
        yield Middleware(Hosts, settings.allowed_hosts)
    # Outside ApiKeys, because browsers send preflight requests without a key.
    if settings.cors is not None:
        yield Middleware(Cors, settings.cors)
    if settings.guarded:
        keys = plain_keys(settings.api_keys, Quota(concurrent_requests=settings.max_requests_per_key))
        yield Middleware(ApiKeys, keys, settings.key_file, page)
    if settings.max_requests_per_key is not None or settings.key_file is not None:
        yield Middleware(QuotaLimits, state.quotas)
    upload = replace(
        settings.limits,
        body_bytes=settings.limits.file_bytes + FORM_BYTES,
        bodies_bytes=settings.batch_store_bytes,
        body_seconds=settings.limits.file_seconds,
    )
    form = BodyRules(upload, b"multipart/form-data", "a form")
    recording = BodyRules(
        replace(
            settings.limits,
            body_bytes=settings.limits.audio_bytes + FORM_BYTES,
            body_seconds=settings.limits.file_seconds,
        ),
        b"multipart/form-data",
        "a form",
    )
    special = {("POST", files.PATH): form, **{("POST", path): recording for path in audio.PATHS.values()}}
    yield Middleware(BodyLimits, settings.limits, (OLLAMA,), special)
    if settings.sse_keep_alive_seconds:
        yield Middleware(KeepAlive, settings.sse_keep_alive_seconds)


class RootPath:
    """ASGI middleware: removes a reverse proxy's path prefix, if the proxy has left it on, before other middleware sees
    the path."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(f"{self._prefix}/"):
            scope["path"] = path.removeprefix(self._prefix)
        await self._app(scope, receive, send)
