"""`tessera serve`: from flags to a server that answers."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.address import DEFAULT_HOST, listen, socket_path, url_of
from tessera.cli.event_loop import loop_factory
from tessera.cli.flag_command import FlagCommand
from tessera.cli.log import set_up_logging
from tessera.cli.model_text import AskedTemplate, chat_template_of, tokenizer_of
from tessera.cli.notices import warnings_before
from tessera.cli.progress import ProgressLine
from tessera.cli.report import report
from tessera.cli.serve_flags import FLAGS, TABLE
from tessera.cli.serve_settings import server_settings
from tessera.cli.suggestions import model_folders
from tessera.config import EngineConfig, build_config
from tessera.config.environment import read_environment

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tessera.engine.async_engine import AsyncEngine
    from tessera.server.settings import ServerSettings
    from tessera.text import ChatTemplate, Tokenizer

# Flags of the front process; all others are the engine's, by the names of build_config.
_OWN = frozenset(
    {flag.name for flag in FLAGS if flag.group in ("server", "security", "logging")}
    | {"served_model_name", "generation_config", "override_generation_config"}
    | {"chat_template", "chat_template_content_format", "default_chat_template_kwargs"}
)


@click.command(cls=FlagCommand, table=TABLE)
@click.argument("model", required=False, shell_complete=model_folders)
def serve(model: str | None, **flags: Any) -> int:
    """Serve a model over the OpenAI API."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the start alike; later they are the server's
    environment = read_environment()
    set_up_logging(flags["log_level"] or "info", requests=not flags["disable_log_requests"])
    with listen(flags["host"], flags["port"], flags["uds"]) as listener:
        names = flags["served_model_name"]
        engine_flags = {name: value for name, value in flags.items() if name not in _OWN}
        config = build_config(model=model, served_model_name=names[0] if names else None, **engine_flags)
        settings = server_settings(config, flags, environment)
        guarded = bool(settings.api_keys) or flags["uds"] is not None
        host = flags["host"] or DEFAULT_HOST
        for warning in warnings_before(host, guarded=guarded, unknown=environment.unknown):
            click.echo(f"warning: {warning}", err=True)
        return _run(_Served(config, settings, listener, AskedTemplate.of(flags), flags["routes"], began))


def _run(served: _Served) -> int:
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(served.until_end())
    except asyncio.CancelledError:
        return 0


class _Served:
    """One run of the server, from the engine's start to the exit code. began: on the monotonic clock."""

    def __init__(
        self,
        config: EngineConfig,
        settings: ServerSettings,
        listener: socket.socket,
        template: AskedTemplate,
        routes: Sequence[str],
        began: float,
    ) -> None:
        self.config = config
        self.settings = settings
        self.listener = listener
        self.template = template
        self.routes = routes
        self.began = began

    async def until_end(self) -> int:
        """Starts the engine, reports, serves."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        tokenizer = tokenizer_of(self.config)
        template = chat_template_of(tokenizer, self.template)
        make_routes = _plugin_routes(self.routes)
        # The server's libraries load while the engine does.
        engine, server = await asyncio.gather(self._start(tokenizer), asyncio.to_thread(_import_server))
        app = server.create_app(engine, self.settings, template)
        for make in make_routes:
            app.router.routes.extend(make(engine))
        click.echo(
            report(
                engine.info,
                model=self.settings.served_model_names[0],
                url=url_of(self.listener, tls=self.settings.tls is not None),
                socket_path=socket_path(self.listener),
                chat=template is not None,
                guarded=bool(self.settings.api_keys),
                seconds=time.monotonic() - self.began,
            )
        )
        return await server.serve(engine, app, self.listener, self.settings)

    async def _start(self, tokenizer: Tokenizer | None) -> AsyncEngine:
        from tessera.engine.async_engine import AsyncEngine

        progress = ProgressLine(sys.stderr)
        try:
            return await AsyncEngine.start(self.config, tokenizer=tokenizer, on_progress=progress)
        finally:
            progress.close()


@dataclass(frozen=True)
class _Server:
    create_app: Callable[[AsyncEngine, ServerSettings, ChatTemplate | None], Starlette]
    serve: Callable[[AsyncEngine, Starlette, socket.socket, ServerSettings], Awaitable[int]]


def _import_server() -> _Server:
    from tessera.server.app import create_app
    from tessera.server.serve import serve

    return _Server(create_app, serve)


def _plugin_routes(names: Sequence[str]) -> list[Any]:
    """Functions (engine) -> routes."""
    if not names:
        return []
    from tessera.plugins import load_path, load_plugins
    from tessera.plugins.extensions import named_routes

    plugins = load_plugins(read_environment().load_plugins)
    return [load_path(path) for path in named_routes(plugins, names)]
