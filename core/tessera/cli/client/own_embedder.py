"""This program's own engine as an embedder. The server's route for embeddings runs in process, so that requests are
read, checked and answered by the same code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tessera.cli.client import Prompt
from tessera.cli.client.local import running_engine
from tessera.cli.client.remote import error_of
from tessera.cli.client.vectors import embedding_body
from tessera.cli.model_text import TemplateOptions
from tessera.config import EngineConfig, Supervision, build_config

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine
    from tessera.engine.messages import EngineInfo
    from tessera.server.batches.endpoints import Endpoints

ROUTE = "/v1/embeddings"


class OwnEmbedder:
    """See start_embedder()."""

    def __init__(self, engine: AsyncEngine, endpoints: Endpoints) -> None:
        self._engine = engine
        self._endpoints = endpoints

    @property
    def model(self) -> str:
        return self._engine.config.model.served_name

    @property
    def max_model_len(self) -> int | None:
        return self._engine.info.max_model_len

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def post_embeddings(self, inputs: Sequence[Prompt], fields: Mapping[str, Any]) -> bytes:
        answer = await self._endpoints.post(ROUTE, embedding_body(self.model, inputs, fields), "")
        if answer.status != 200:
            raise error_of(answer.status, answer.body, ROUTE)
        return answer.body


def embedder_config(model: str | None, flags: Mapping[str, Any]) -> EngineConfig:
    """Of an engine that embeds: a model that generates is converted, unless --convert says otherwise. Raises
    ConfigError, ModelError, PlatformError, or RequestError if the model does not embed."""
    from tessera.engine.model_tasks import check_pools

    config = build_config(model, **flags)
    if config.model.pooler is None and flags.get("convert") is None:
        config = build_config(model, **{**flags, "convert": "embed"})
    check_pools(config.model, ["embed"])
    return config


@asynccontextmanager
async def start_embedder(config: EngineConfig) -> AsyncIterator[OwnEmbedder]:
    """Starts the engine, showing progress, and ends it on exit; if it dies, that is the end of the command. Raises
    TesseraError."""
    from tessera.server.batches.endpoints import Endpoints, endpoint_apps
    from tessera.server.context import ServerContext
    from tessera.server.pooling import embeddings
    from tessera.server.settings import ServerSettings

    async with running_engine(config, TemplateOptions(), Supervision(max_restarts=0)) as engine:
        context = ServerContext(engine, ServerSettings(served_model_names=(config.model.served_name,)))
        try:
            yield OwnEmbedder(engine, Endpoints(endpoint_apps([embeddings.route(context)])))
        finally:
            for close in context.closers:
                await close()
