"""What `tessera serve` does, from flags to a server that answers."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.cli.address import DEFAULT_HOST, listen, socket_path, url_of
from tessera.cli.announce import ToLog, ToUser, announcer
from tessera.cli.event_loop import loop_factory
from tessera.cli.explain import choices_table, explained_platform
from tessera.cli.log import set_up_server_logging
from tessera.cli.model_text import AskedTemplate, text_workers_of
from tessera.cli.notices import warnings_before
from tessera.cli.report import report
from tessera.cli.serve_flags import FLAGS
from tessera.cli.serve_settings import server_settings, supervision
from tessera.config import EngineConfig, build_config
from tessera.config.environment import read_environment
from tessera.log import TEXT

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tessera.engine.async_engine import AsyncEngine
    from tessera.engine.child import EngineChild
    from tessera.engine.supervisor import Supervision
    from tessera.server.serve import Started
    from tessera.server.settings import ServerSettings
    from tessera.text.workers import TextWorkers

# Flags of the front process; all others are the engine's, by the names of build_config.
_OWN = frozenset(
    {flag.name for flag in FLAGS if flag.group in ("server", "security", "logging")}
    | {"explain", "served_model_name", "chat_template", "chat_template_content_format", "default_chat_template_kwargs"}
)


def run(model: str | None, flags: Mapping[str, Any], child: EngineChild, began: float) -> int:
    """Serves until the end and returns the exit code. model: as build_config takes it. child: the engine's process,
    which the caller ends. began: when the command did, on the monotonic clock. Raises TesseraError."""
    environment = read_environment()
    log_format = flags["log_format"] or TEXT
    set_up_server_logging(flags["log_level"] or "info", log_format, requests=not flags["disable_log_requests"])
    announce = announcer(log_format)
    with listen(flags["host"], flags["port"], flags["uds"]) as listener:
        names = flags["served_model_name"]
        engine_flags = {name: value for name, value in flags.items() if name not in _OWN}
        levels: dict[str, int] | None = None
        if flags["explain"]:
            engine_flags["platform"], levels = _explained(flags["platform"], announce)
        config = build_config(model=model, served_model_name=names[0] if names else None, **engine_flags)
        if levels is not None:
            config = dataclasses.replace(config, platform_levels=levels)
        config = dataclasses.replace(config, log_format=log_format)
        settings = server_settings(config, flags, environment)
        guarded = bool(settings.api_keys) or flags["uds"] is not None
        host = flags["host"] or DEFAULT_HOST
        for warning in warnings_before(host, guarded=guarded, unknown=environment.unknown):
            announce.warn(warning)
        template, routes = AskedTemplate.of(flags), flags["routes"]
        explain = bool(flags["explain"])
        watch = supervision(flags)
        return _run(_Served(config, settings, watch, child, listener, template, routes, announce, began, explain))


def _explained(name: str | None, announce: ToUser | ToLog) -> tuple[str, dict[str, int]]:
    """The dotted path of the platform and its API levels, once it is said why it is chosen."""
    path, levels, table = explained_platform(name)
    announce.explain(table)
    return path, levels


def _run(served: _Served) -> int:
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(served.until_end())
    except asyncio.CancelledError:
        return 0


class _Served:
    """One run of the server, from the engine's start to the exit code. began: on the monotonic clock. explain: say who
    does each part of the model."""

    def __init__(
        self,
        config: EngineConfig,
        settings: ServerSettings,
        supervision: Supervision,
        child: EngineChild,
        listener: socket.socket,
        template: AskedTemplate,
        routes: Sequence[str],
        announce: ToUser | ToLog,
        began: float,
        explain: bool,
    ) -> None:
        self.config = config
        self.settings = settings
        self.supervision = supervision
        self.child = child
        self.listener = listener
        self.template = template
        self.routes = routes
        self.announce = announce
        self.began = began
        self.explain = explain

    async def until_end(self) -> int:
        """Starts the engine, serves, and reports when it is ready."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        text = text_workers_of(self.config, self.template)
        try:
            make_routes = _plugin_routes(self.routes)
            starting = asyncio.create_task(self._start(text))
            # The server's libraries load while the engine does.
            server = await asyncio.to_thread(_import_server)
            started = self._started(server, starting, make_routes)
            return await server.serve(started, self.listener, self.settings)
        finally:
            if text is not None:
                await text.close()

    async def _start(self, text: TextWorkers | None) -> AsyncEngine:
        from tessera.engine.async_engine import AsyncEngine

        engine = asyncio.create_task(
            AsyncEngine.start(
                self.config,
                text=text,
                on_progress=self.announce.progress,
                supervision=self.supervision,
                child=self.child,
            )
        )
        try:
            # The first of the two to be there; what is wrong with its files is said without waiting for the engine.
            if text is not None:
                await text.ready()
            return await engine
        finally:
            engine.cancel()
            await asyncio.wait((engine,))
            self.announce.close()

    async def _started(
        self,
        server: _Server,
        starting: asyncio.Task[AsyncEngine],
        make_routes: Sequence[Any],
    ) -> Started:
        engine = await starting
        app = server.create_app(engine, self.settings)
        for make in make_routes:
            app.router.routes.extend(make(engine))
        if self.explain:
            self.announce.explain(choices_table(engine.info.platform, engine.info.choices))
        self.announce.ready(
            report(
                engine.info,
                model=self.settings.served_model_names[0],
                url=url_of(self.listener, tls=self.settings.tls is not None),
                socket_path=socket_path(self.listener),
                chat=engine.text is not None and engine.text.has_template,
                guarded=bool(self.settings.api_keys),
                seconds=time.monotonic() - self.began,
            )
        )
        return server.started(engine, app)


@dataclass(frozen=True)
class _Server:
    create_app: Callable[[AsyncEngine, ServerSettings], Starlette]
    started: type[Started]
    serve: Callable[[Coroutine[Any, Any, Started], socket.socket, ServerSettings], Coroutine[Any, Any, int]]


def _import_server() -> _Server:
    from tessera.server.app import create_app
    from tessera.server.serve import Started, serve

    return _Server(create_app, Started, serve)


def _plugin_routes(names: Sequence[str]) -> list[Any]:
    """Functions (engine) -> routes."""
    if not names:
        return []
    from tessera.plugins import load_path, load_plugins
    from tessera.plugins.extensions import named_routes

    plugins = load_plugins(read_environment())
    return [load_path(path) for path in named_routes(plugins, names)]
