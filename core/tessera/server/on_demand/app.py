"""The application of a server of several models: what it says of them all, and the way to each."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tessera._version import __version__
from tessera.engine.metrics import Metric
from tessera.engine.model_tasks import tasks_of
from tessera.server import adapters
from tessera.server.access import Counts
from tessera.server.adapter_copies import AdapterCopies
from tessera.server.app import bare_app, middleware, model_routes, until_end
from tessera.server.assembly import Assembly
from tessera.server.batches import batches, files
from tessera.server.batches.endpoints import Endpoints
from tessera.server.batches.jobs import Jobs
from tessera.server.batches.protocol import ENDPOINTS
from tessera.server.batches.storage import Storage
from tessera.server.context import ServerContext, ServerState
from tessera.server.http import json_response
from tessera.server.keys import allows, check_allows
from tessera.server.ollama.protocol import Tags, VersionAnswer
from tessera.server.ollama.tags import tag_of
from tessera.server.on_demand.dispatch import ModelDispatch
from tessera.server.on_demand.hosted_model import HostedModel, HostedState
from tessera.server.on_demand.hosted_models import HostedModels
from tessera.server.on_demand.hosted_room import HostedRoom
from tessera.server.openapi import JsonRoute
from tessera.server.page import Page
from tessera.server.settings import ServerSettings
from tessera.server.status import (
    PREFIX,
    ServerLoad,
    ServerStatus,
    Version,
    engine_lines,
    metrics_response,
    model_lines,
    server_lines,
)
from tessera.server.store import Store

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine


class HostedModelCard(msgspec.Struct, kw_only=True):
    """A model or an adapter as /v1/models lists it. What only a loaded model knows is left out of others."""

    id: str
    created: int
    state: HostedState
    # of an adapter: the model that it changes
    parent: str | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    # as of ModelCard
    tasks: list[str] | UnsetType = UNSET
    object: str = "model"
    owned_by: str = "tessera"


class HostedModelList(msgspec.Struct, kw_only=True):
    data: list[HostedModelCard]
    object: str = "list"


@dataclass(frozen=True)
class _Shared:
    """What the models of a server have in common: the context of its own routes."""

    models: HostedModels
    settings: ServerSettings
    state: ServerState
    # of responses, conversations and chats
    store: Store
    # of files and batches
    storage: Storage
    assembly: Assembly

    @property
    def counts(self) -> Counts:
        return self.state.counts


def create_app(models: HostedModels, settings: ServerSettings, state: ServerState, store: Store) -> FastAPI:
    """Builds the application that serves several models. What asks a model goes to that model's own application. store:
    of all models; it is closed at the end."""
    page = None if settings.disable_ui else Page.read()
    storage = Storage(settings.batch_store, settings.batch_store_bytes)
    shared = _Shared(models, settings, state, store, storage, Assembly())
    dispatch = ModelDispatch(models)
    endpoints = Endpoints(dict.fromkeys(ENDPOINTS, dispatch), settings.key_file, settings.tracer)
    room = HostedRoom(models, state.counts, lambda: not storage.full, settings.key_file)
    jobs = Jobs(settings.limits, storage, endpoints, room)
    routes: list[Route] = [*_routes(models, state), _metrics_route(models, settings, state)]
    routes += [*files.routes(storage, settings.limits, jobs.reads), *batches.routes(shared, storage, jobs)]
    if page is not None:
        routes.append(page.route())
    app = bare_app(
        routes,
        lambda: _until_end(shared, jobs),
        middleware(settings, state, lambda: [*app.routes, *models.routes()], page),
    )
    dispatch.absent = app.router.default
    app.router.default = dispatch
    return app


@asynccontextmanager
async def _until_end(shared: _Shared, jobs: Jobs) -> AsyncIterator[None]:
    shared.state.loop.start()
    shared.state.disks.start(shared.settings)
    shared.models.start()
    jobs.start()
    try:
        yield
    finally:
        await jobs.end()
        await shared.state.loop.stop()
        await shared.state.disks.stop()
        if shared.settings.tracer is not None:
            await shared.settings.tracer.close()
        await shared.assembly.close()
        shared.storage.close()
        shared.store.close()


def loaded_app(
    engine: AsyncEngine, settings: ServerSettings, state: ServerState, store: Store, copies: AdapterCopies
) -> FastAPI:
    """The application of one of several models. store: of all of them. copies: the adapters that were loaded for it."""
    context = ServerContext(engine, settings, state)
    return bare_app(model_routes(context, store, adapters.routes(context, copies)), lambda: until_end(context))


def _routes(models: HostedModels, state: ServerState) -> list[JsonRoute]:
    created = int(time.time())

    async def ok(_request: Request) -> Response:
        return json_response(ServerStatus("ok"))

    async def version(_request: Request) -> Response:
        return json_response(Version(__version__))

    async def load(_request: Request) -> Response:
        return json_response(ServerLoad(state.counts.generating))

    async def listed(request: Request) -> Response:
        each = [(model, name) for model in models.models.values() for name in (model.name, *model.adapters)]
        cards = [_card(model, name, created) for model, name in each if allows(request.scope, name)]
        return json_response(HostedModelList(data=cards))

    async def model_card(request: Request) -> Response:
        name = request.path_params["model"]
        model = models.find(name)
        check_allows(request.scope, name)
        return json_response(_card(model, name, created))

    def tags(request: Request, each: Iterable[HostedModel]) -> Response:
        named = [(model.loaded, name) for model in each for name in (model.name, *model.adapters)]
        configs = [(name, None if loaded is None else loaded.engine.config.model) for loaded, name in named]
        return json_response(
            Tags([tag_of(name, config, created) for name, config in configs if allows(request.scope, name)])
        )

    async def all_tags(request: Request) -> Response:
        return tags(request, models.models.values())

    async def loaded_tags(request: Request) -> Response:
        return tags(request, [model for model in models.models.values() if model.loaded is not None])

    async def ollama_version(_request: Request) -> Response:
        return json_response(VersionAnswer(__version__))

    can_answer = "Whether the server is ready: it is as long as it runs, whichever models are loaded."
    listing = JsonRoute("/v1/models", listed, "The models that requests may name.", answer=HostedModelList)
    return [
        JsonRoute("/livez", ok, "Whether the process is alive.", answer=ServerStatus),
        JsonRoute("/readyz", ok, can_answer, answer=ServerStatus),
        JsonRoute("/health", ok, can_answer, answer=ServerStatus),
        JsonRoute("/ping", ok, can_answer, methods=("GET", "POST"), answer=ServerStatus),
        JsonRoute("/version", version, "The version of the server.", answer=Version),
        JsonRoute("/load", load, "How many requests are generating now.", answer=ServerLoad),
        listing,
        listing.at("/models"),
        JsonRoute("/v1/models/{model:path}", model_card, "One model.", answer=HostedModelCard),
        JsonRoute("/api/tags", all_tags, "The models, by Ollama's API.", answer=Tags),
        JsonRoute("/api/ps", loaded_tags, "The models that are loaded, by Ollama's API.", answer=Tags),
        JsonRoute("/api/version", ollama_version, "The version, by Ollama's API.", answer=VersionAnswer),
    ]


def _card(model: HostedModel, name: str, created: int) -> HostedModelCard:
    """name: the model's own, or that of an adapter."""
    parent = UNSET if name == model.name else model.name
    card = HostedModelCard(id=name, created=created, state=model.state, parent=parent)
    if model.loaded is not None:
        card.max_model_len = model.loaded.engine.info.max_model_len
        card.tasks = tasks_of(model.loaded.engine.config.model)
    return card


# ---- metrics ---------------------------------------------------------------------------------------------------------


def _metrics_route(models: HostedModels, settings: ServerSettings, state: ServerState) -> JsonRoute:
    async def metrics(_request: Request) -> Response:
        lines = [*server_lines(state, settings), *engine_lines([(loading_metrics(models.models.values()), {})], PREFIX)]
        for model in models.models.values():
            if model.loaded is not None:
                engine = model.loaded.engine
                folders = {folder: name for name, folder in engine.config.lora.modules}
                folders |= {str(copy): name for name, copy in model.copies.by_name.items()}
                lines += model_lines(engine, model.name, settings, folders)
        return metrics_response(by_family(lines))

    return JsonRoute("/metrics", metrics, "Metrics as Prometheus text.", media_type="text/plain")


def loading_metrics(every: Collection[HostedModel]) -> Iterator[Metric]:
    """Of all models, loaded or not."""
    for model in every:
        loaded = int(model.loaded is not None)
        yield Metric("model_loaded", "gauge", "1 for a model that is loaded.", loaded, ("model_name", model.name))
    for model in every:
        label = ("model_name", model.name)
        yield Metric("model_loads", "counter", "How often a model was loaded.", model.num_loads, label)
    for model in every:
        label = ("model_name", model.name)
        yield Metric("model_load_failures", "counter", "How often it could not be.", model.num_failures, label)


def by_family(lines: Iterable[str]) -> list[str]:
    """The lines of several expositions as one, which has each name once, with the values of all."""
    families: dict[str, list[str]] = {}
    family: list[str] = []
    for line in lines:
        if line.startswith("# HELP "):
            family = families.setdefault(line.split(" ", 3)[2], [])
        if not line.startswith("#") or line not in family:
            family.append(line)
    return [line for family in families.values() for line in family]
