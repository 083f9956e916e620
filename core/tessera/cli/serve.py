"""`tessera serve`: from flags to a server that answers."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.address import bind, url_of
from tessera.cli.log import set_up_logging
from tessera.cli.notices import warnings_before
from tessera.cli.progress import ProgressLine
from tessera.cli.report import report
from tessera.cli.serve_command import ServeCommand
from tessera.config import EngineConfig, build_config
from tessera.config.environment import Environment, read_environment
from tessera.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tessera.engine.async_engine import AsyncEngine
    from tessera.server.settings import ServerSettings
    from tessera.text import ChatTemplate, Tokenizer

# Flags of the front process; all others are the engine's, by the names of build_config.
_OWN = frozenset(
    {"host", "port", "api_key", "chat_template", "shutdown_timeout", "routes"}
    | {"served_model_name", "log_level", "disable_log_requests"}
)
MAX_TEMPLATE_BYTES = 2**20
MAX_SHUTDOWN_SECONDS = 86_400.0


@click.command(cls=ServeCommand)
@click.argument("model", required=False)
def serve(model: str | None, **flags: Any) -> int:
    """Serve a model over the OpenAI API."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the start alike; later they are the server's
    environment = read_environment()
    set_up_logging(flags["log_level"] or "info", requests=not flags["disable_log_requests"])
    host = flags["host"] or "127.0.0.1"
    with bind(host, 8000 if flags["port"] is None else flags["port"]) as listener:
        names = flags["served_model_name"]
        engine_flags = {name: value for name, value in flags.items() if name not in _OWN}
        config = build_config(model=model, served_model_name=names[0] if names else None, **engine_flags)
        settings = server_settings(config, flags, environment)
        for warning in warnings_before(host, guarded=bool(settings.api_keys), unknown=environment.unknown):
            click.echo(f"warning: {warning}", err=True)
        return _run(_Served(config, settings, listener, flags["chat_template"], flags["routes"], began))


def server_settings(config: EngineConfig, flags: Mapping[str, Any], environment: Environment) -> ServerSettings:
    """Raises ConfigError."""
    from tessera.server.settings import ServerSettings

    drain = 30.0 if flags["shutdown_timeout"] is None else flags["shutdown_timeout"]
    if not 0 <= drain <= MAX_SHUTDOWN_SECONDS:
        raise ConfigError(f"--shutdown-timeout must be from 0 to {MAX_SHUTDOWN_SECONDS:.0f} seconds, got {drain:g}.")
    keys = flags["api_key"] or ((environment.api_key,) if environment.api_key else ())
    if not all(keys):
        raise ConfigError("--api-key must not be empty.")
    return ServerSettings(
        served_model_names=flags["served_model_name"] or (config.model.served_name,),
        api_keys=keys,
        default_sampling=config.model.sampling_defaults,
        drain_seconds=drain,
    )


def _run(served: _Served) -> int:
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(served.until_end())
    except asyncio.CancelledError:
        return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where there is a uvloop, which is not so on every system."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


class _Served:
    """One run of the server, from the engine's start to the exit code. began: on the monotonic clock."""

    def __init__(
        self,
        config: EngineConfig,
        settings: ServerSettings,
        listener: socket.socket,
        template_file: str | None,
        routes: Sequence[str],
        began: float,
    ) -> None:
        self.config = config
        self.settings = settings
        self.listener = listener
        self.template_file = template_file
        self.routes = routes
        self.began = began

    async def until_end(self) -> int:
        """Starts the engine, reports, serves."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        tokenizer = _tokenizer(self.config)
        template = _chat_template(tokenizer, self.template_file)
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
                url=url_of(self.listener),
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


def _tokenizer(config: EngineConfig) -> Tokenizer | None:
    from tessera.text import Tokenizer

    return Tokenizer.from_folder(config.model.tokenizer) if config.model.tokenizer else None


def _chat_template(tokenizer: Tokenizer | None, file: str | None) -> ChatTemplate | None:
    """The model's, or that of --chat-template; None where there is none."""
    from tessera.text import ChatTemplate

    if tokenizer is None:
        if file is not None:
            raise ConfigError("--chat-template needs a tokenizer; leave --skip-tokenizer-init out.")
        return None
    source = tokenizer.chat_templates if file is None else _read_template(Path(file))
    return ChatTemplate(source, tokenizer.special_tokens) if source else None


def _read_template(path: Path) -> str:
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"--chat-template '{path}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"--chat-template '{path}' is not UTF-8 text.") from error
    if len(content) > MAX_TEMPLATE_BYTES:
        raise ModelError(f"--chat-template '{path}' has more than {MAX_TEMPLATE_BYTES} bytes.")
    return text


def _plugin_routes(names: Sequence[str]) -> list[Any]:
    """Functions (engine) -> routes."""
    if not names:
        return []
    from tessera.plugins import load_path, load_plugins
    from tessera.plugins.extensions import named_routes

    plugins = load_plugins(read_environment().load_plugins)
    return [load_path(path) for path in named_routes(plugins, names)]
