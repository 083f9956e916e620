"""This program's own engine as an embedder. The server's route for embeddings runs in process, so that requests are
read, checked and answered by the same code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tessera.cli.client.local import running_engine
from tessera.cli.client.remote import error_of
from tessera.cli.client.vectors import embedding_body, read_embeddings
from tessera.cli.model_text import TemplateOptions
from tessera.config import EngineConfig, Supervision, build_config

if TYPE_CHECKING:
    from tessera.server.batches.endpoints import Endpoints

ROUTE = "/v1/embeddings"


class OwnEmbedder:
    """See start_embedder()."""

    def __init__(self, endpoints: Endpoints, model: str) -> None:
        self._endpoints = endpoints
        self._model = model

    async def embed(self, texts: Sequence[str], fields: Mapping[str, Any]) -> list[list[float]]:
        answer = await self._endpoints.post(ROUTE, embedding_body(self._model, texts, fields), "")
        if answer.status != 200:
            raise error_of(answer.status, answer.body, ROUTE)
        return read_embeddings(answer.body, len(texts))


def embedder_config(model: str | None, flags: Mapping[str, Any]) -> EngineConfig:
    """Of an engine that embeds: a model that generates is converted, unless --convert says otherwise. Raises
    ConfigError, ModelError, PlatformError, or RequestError if the model does not embed."""
    from tessera.server.model_tasks import check_pools

    config = build_config(model, **flags)
    if config.model.pooler is None and flags.get("convert") is None:
        config = build_config(model, **{**flags, "convert": "embed"})
    check_pools(config.model, ["embed"])
    return config


@asynccontextmanager
async def start_embedder(config: EngineConfig) -> AsyncIterator[OwnEmbedder]:
    """Starts the engine, showing progress, and ends it on exit; if it dies, that is the end of the command. Raises
    TesseraError."""
    from tessera.server.batches.endpoints import Endpoints
    from tessera.server.context import ServerContext
    from tessera.server.pooling import embeddings
    from tessera.server.settings import ServerSettings

    name = config.model.served_name
    async with running_engine(config, TemplateOptions(), Supervision(max_restarts=0)) as engine:
        context = ServerContext(engine, ServerSettings(served_model_names=(name,)))
        try:
            yield OwnEmbedder(Endpoints([embeddings.route(context)]), name)
        finally:
            for close in context.closers:
                await close()
