"""Implements `tessera serve --models FILE`: several models, each loaded when a request asks for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.cli.event_loop import run_until_end
from tessera.cli.listen import listen, open_to_clients, socket_path, url_of
from tessera.cli.model_entries import ModelEntry
from tessera.cli.model_text import TEMPLATE_FLAGS, TemplateOptions, media_workers_of, text_workers_of
from tessera.cli.process_settings import answer_promptly, return_memory
from tessera.cli.report import Announcer, models_report
from tessera.cli.serving import (
    engine_config,
    http_settings,
    model_settings,
    set_up,
    unknown_variables,
    warnings_before,
)
from tessera.config import EngineConfig, Supervision
from tessera.config.engine import BUSY
from tessera.config.environment import read_environment
from tessera.config.flags import given_values, record_of
from tessera.errors import ConfigError
from tessera.server.loop_watch import ended_if_it_hangs
from tessera.server.settings import SERVER_FLAGS, OnDemandRules, ServeOptions, ServerSettings

if TYPE_CHECKING:
    from tessera.server.adapter_copies import AdapterCopies
    from tessera.server.context import ServerState
    from tessera.server.on_demand.hosted_model import LoadedHost
    from tessera.server.serve import ReadyApp
    from tessera.server.store import Store


def run_models(entries: Sequence[ModelEntry], flags: Mapping[str, Any], ignored: Sequence[str] = ()) -> int:
    """Serves until stopped and returns the exit code. flags, ignored: as of serving.run(). Raises TesseraError."""
    environment = read_environment()
    own = given_values(SERVER_FLAGS, flags, as_options=True)
    options = record_of(ServeOptions, SERVER_FLAGS, own)
    for name in ("routes", "explain", "enable_sleep_mode"):
        if own.get(name):
            raise ConfigError(f"--{name.replace('_', '-')} cannot be used with --models; remove it.")
    announce = set_up(options)
    with listen(options.host, options.port, options.uds, later=options.listen_when_ready) as listener:
        settings = http_settings(flags, options, environment)
        guarded = settings.guarded or options.uds is not None
        unknown = unknown_variables(environment)
        for warning in (*ignored, *warnings_before(options.host, guarded=guarded), *unknown):
            announce.warn(warning)
        rules = record_of(OnDemandRules, SERVER_FLAGS, own)
        supervision = record_of(Supervision, SERVER_FLAGS, own)
        served = _ServedModels(entries, settings, rules, supervision, listener, options, announce)
        return run_until_end(served.until_end)


@dataclass(frozen=True)
class _ServedModels:
    """One run of the server."""

    entries: Sequence[ModelEntry]
    settings: ServerSettings
    rules: OnDemandRules
    supervision: Supervision
    listener: socket.socket
    options: ServeOptions
    announce: Announcer

    async def until_end(self) -> int:
        from tessera.server.serve import serve

        with ended_if_it_hangs(BUSY * self.supervision.stall_seconds):
            return await serve(self._ready_app(), self.listener, self.settings)

    async def _ready_app(self) -> ReadyApp:
        from tessera.server.context import ServerState
        from tessera.server.on_demand.app import create_app
        from tessera.server.on_demand.hosted_model import HostedEntry
        from tessera.server.on_demand.hosted_models import HostedModels
        from tessera.server.serve import ReadyApp
        from tessera.server.store import Store

        state = ServerState()
        store = Store(self.settings.response_store, self.settings.response_store_bytes)
        hosts = [_Host(entry, self.settings, self.supervision, self.options, state, store) for entry in self.entries]
        models = HostedModels(
            [HostedEntry(host.entry.name, host.configure, host.entry.adapters) for host in hosts], self.rules
        )
        app = create_app(models, self.settings, state, store)
        if self.options.listen_when_ready:
            open_to_clients(self.listener)
        url = url_of(self.listener, tls=self.settings.tls is not None)
        self.announce.ready(models_report([*models.models], url, socket_path(self.listener)))
        self.announce.close()
        return_memory()
        answer_promptly()
        return ReadyApp(models, app)


@dataclass(frozen=True)
class _Host:
    """One entry. state, store: of the server."""

    entry: ModelEntry
    settings: ServerSettings
    supervision: Supervision
    options: ServeOptions
    state: ServerState
    store: Store

    async def configure(self) -> _ConfiguredModel:
        """Raises TesseraError."""
        flags = self.entry.flags
        given = given_values(TEMPLATE_FLAGS, flags, as_options=True)
        template = record_of(TemplateOptions, TEMPLATE_FLAGS, given)
        config = await asyncio.to_thread(engine_config, self.entry.model, flags, self.options)
        settings = model_settings(self.settings, config, (self.entry.name,), flags, template)
        return _ConfiguredModel(self, config, settings, template)


@dataclass(frozen=True)
class _ConfiguredModel:
    host: _Host
    config: EngineConfig
    settings: ServerSettings
    template: TemplateOptions

    async def plan(self) -> int:
        """Bytes of all devices together. Raises TesseraError."""
        from tessera.engine.plan import plan

        planned = await asyncio.to_thread(plan, self.config)
        return (planned.weight_bytes + planned.cache_bytes) * planned.num_devices

    async def load(self, copies: AdapterCopies) -> LoadedHost:
        """Raises TesseraError."""
        from tessera.engine.async_engine import AsyncEngine
        from tessera.server.on_demand.app import loaded_app
        from tessera.server.on_demand.hosted_model import LoadedHost

        config, host = self.config, self.host
        async with AsyncExitStack() as undo:
            text, media = text_workers_of(config, self.template), media_workers_of(config)
            for workers in (text, media):
                if workers is not None:
                    undo.push_async_callback(workers.close)
            for workers in (text, media):
                if workers is not None:
                    await workers.ready()
            engine = await AsyncEngine.start(config, text=text, media=media, supervision=host.supervision)
            undo.push_async_callback(engine.shutdown)
            app = loaded_app(engine, self.settings, host.state, host.store, copies)
            await undo.enter_async_context(app.router.lifespan_context(app))
            return LoadedHost(engine, app, undo.pop_all().aclose)
