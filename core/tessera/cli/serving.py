"""Implements `tessera serve`, from its flags to a running server."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.cli.event_loop import run_until_end
from tessera.cli.listen import is_loopback, listen, open_to_clients, socket_path, url_of
from tessera.cli.model_text import (
    TEMPLATE_FLAGS,
    TemplateOptions,
    generation_defaults,
    media_workers_of,
    text_workers_of,
)
from tessera.cli.platforms import choices_table, explained_platform
from tessera.cli.process_settings import answer_promptly, return_memory
from tessera.cli.report import Announcer, LogAnnouncer, TerminalAnnouncer, report
from tessera.config import EngineConfig, Supervision, build_config
from tessera.config.engine import BUSY, ENGINE_FLAGS
from tessera.config.environment import Environment, read_environment, unknown_variable
from tessera.config.flags import given_values, record_of
from tessera.errors import ConfigError
from tessera.log import JSON, set_up_logging
from tessera.media.rules import MediaRules
from tessera.plugins.discovery import declared_variables, discover
from tessera.server.certificates import certificates
from tessera.server.loop_watch import ended_if_it_hangs
from tessera.server.settings import SERVER_FLAGS, CorsRules, Limits, ServeOptions, ServerSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tessera.engine.async_engine import AsyncEngine
    from tessera.engine.child import EngineChild
    from tessera.media.workers import MediaWorkers
    from tessera.server.key_file import KeyFile
    from tessera.server.serve import ReadyApp
    from tessera.server.tracing import Tracer
    from tessera.text.workers import TextWorkers

ACCESS_LOG = "tessera.server.access"
# Addresses of this machine, and the name that containers know it by. Only whoever answers the machine's own DNS queries
# could give that one to a page; --allowed-hosts leaves it out.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "host.docker.internal")  # noqa: S104 - no address to listen on


def run(
    model: str | None, flags: Mapping[str, Any], child: EngineChild, began: float, ignored: Sequence[str] = ()
) -> int:
    """Serves until stopped and returns the exit code. model: as for build_config. flags: the command's, by name. child:
    the engine process, which the caller ends. began: start of the command on the monotonic clock. ignored: lines about
    flags without effect. Raises TesseraError."""
    environment = read_environment()
    own = given_values(SERVER_FLAGS, flags, as_options=True)
    options = record_of(ServeOptions, SERVER_FLAGS, own)
    template = record_of(TemplateOptions, TEMPLATE_FLAGS, given_values(TEMPLATE_FLAGS, flags, as_options=True))
    announce = set_up(options)
    with listen(options.host, options.port, options.uds, later=options.listen_when_ready) as listener:
        config = engine_config(model, flags, options, announce)
        settings = server_settings(config, flags, options, template, environment)
        guarded = settings.guarded or options.uds is not None
        unknown = unknown_variables(environment)
        for warning in (*ignored, *warnings_before(options.host, guarded=guarded), *unknown):
            announce.warn(warning)
        served = _Served(
            config=config,
            settings=settings,
            supervision=record_of(Supervision, SERVER_FLAGS, own),
            child=child,
            listener=listener,
            template=template,
            options=options,
            announce=announce,
            began=began,
        )
        return run_until_end(served.until_end)


def set_up(options: ServeOptions) -> Announcer:
    """Sets up the log, and returns where messages go that are not records of it."""
    set_up_logging(options.log_level.upper(), options.log_format)
    if options.disable_log_requests:
        logging.getLogger(ACCESS_LOG).setLevel(logging.WARNING)
    return LogAnnouncer() if options.log_format == JSON else TerminalAnnouncer()


def engine_config(
    model: str | None, flags: Mapping[str, Any], options: ServeOptions, announce: Announcer | None = None
) -> EngineConfig:
    """announce: where --explain says what it chose. Raises TesseraError."""
    values = {flag.name: flags[flag.name] for flag in ENGINE_FLAGS}
    names = values.pop("served_model_name")
    levels: dict[str, int] | None = None
    if options.explain and announce is not None:
        values["platform"], levels, table = explained_platform(values["platform"])
        announce.explain(table)
    config = build_config(model, served_model_name=names[0] if names else None, **values)
    if levels is not None:
        config = dataclasses.replace(config, platform_levels=levels)
    return dataclasses.replace(config, log_format=options.log_format)


def warnings_before(host: str, *, guarded: bool) -> Iterator[str]:
    """Warnings to show before anything slow starts. guarded: whether an API key is required or only a Unix socket is
    used."""
    if not guarded and not is_loopback(host):
        yield f"anyone who can reach {host} can use this server; set --api-key to prevent that"


def unknown_variables(environment: Environment) -> list[str]:
    """Warnings about variables with the prefix that nobody reads. Platform packages are asked only if core does not
    read all of them."""
    if not environment.others:
        return []
    declared = declared_variables(discover())
    return [unknown_variable(name, declared) for name in environment.others if name not in declared]


# ---- server settings ------------------------------------------------------------


def server_settings(
    config: EngineConfig,
    flags: Mapping[str, Any],
    options: ServeOptions,
    template: TemplateOptions,
    environment: Environment,
) -> ServerSettings:
    """Raises ConfigError or ModelError."""
    if config.parallel.nnodes > 1 and flags["enable_sleep_mode"]:
        raise ConfigError("--enable-sleep-mode is of one host; remove it, or --nnodes.")
    for name, _ in config.lora.modules:
        if name in flags["served_model_name"]:
            raise ConfigError(f"--lora-modules and --served-model-name both have the name '{name}'; rename one.")
    names = flags["served_model_name"] or (config.model.served_name,)
    return model_settings(http_settings(flags, options, environment), config, names, flags, template)


def model_settings(
    settings: ServerSettings,
    config: EngineConfig,
    names: tuple[str, ...],
    flags: Mapping[str, Any],
    template: TemplateOptions,
) -> ServerSettings:
    """The settings with what is of one model. names: that requests may give. Raises ConfigError or ModelError."""
    sampling, answers = generation_defaults(flags, config)
    values = given_values(SERVER_FLAGS, flags, as_options=True)
    parsers = {name: values[name] for name in ("tool_call_parser", "reasoning_parser") if name in values}
    return dataclasses.replace(
        settings,
        served_model_names=names,
        default_sampling=sampling,
        answers=answers,
        chat_template_kwargs=template.kwargs or {},
        **parsers,
    )


def http_settings(flags: Mapping[str, Any], options: ServeOptions, environment: Environment) -> ServerSettings:
    """The settings of the server, whatever it serves. Raises ConfigError."""
    values = given_values(SERVER_FLAGS, flags, as_options=True)
    key_file = named_keys(options, values.get("max_requests_per_key"))
    keys = api_keys(options, environment)
    guarded = bool(keys) or key_file is not None
    if "max_requests_per_key" in values and not guarded:
        raise ConfigError("--max-requests-per-key needs --api-key.")
    settings = record_of(
        ServerSettings,
        SERVER_FLAGS,
        values,
        api_keys=keys,
        key_file=key_file,
        tracer=_tracer(options.otlp_traces_endpoint),
        limits=record_of(Limits, SERVER_FLAGS, values),
        media=record_of(MediaRules, SERVER_FLAGS, values),
        root_path=_root_path(values.get("root_path", "")),
        allowed_hosts=allowed_hosts(values.get("allowed_hosts", ()), options, guarded=guarded),
        cors=_cors(values),
        tls=certificates(
            options.ssl_certfile,
            options.ssl_keyfile,
            options.ssl_ca_certs,
            int(options.ssl_cert_reqs),
            options.ssl_ciphers,
        ),
    )
    if settings.response_store:
        # What cannot be used is refused now, rather than when the model has been loaded.
        from tessera.server.store import Store

        Store(settings.response_store, settings.response_store_bytes).close()
    if settings.batch_store:
        from tessera.server.batches.storage import Storage

        Storage(settings.batch_store, settings.batch_store_bytes).close()
    return settings


def api_keys(options: ServeOptions, environment: Environment) -> tuple[str, ...]:
    """The keys without names: those from the flag and the file, or else the environment's. Raises ConfigError."""
    file = options.api_key_file
    given = [*options.api_key, *(() if file is None else _keys_in(file))]
    if not given and file is None and environment.api_key:
        given = [environment.api_key]
    # A trailing line break is not part of a key.
    keys = tuple(key.strip() for key in given)
    if not all(keys):
        raise ConfigError("--api-key and TESSERA_API_KEY must not be empty.")
    return keys


def named_keys(options: ServeOptions, concurrent_requests: int | None) -> KeyFile | None:
    """The keys with names. Raises ConfigError."""
    if options.api_key_file is None:
        return None
    # Not at the top: few servers have one.
    from tessera.server.key_file import SUFFIXES, KeyFile

    file = options.api_key_file
    return KeyFile(file, concurrent_requests) if file.endswith(SUFFIXES) else None


def _tracer(endpoint: str | None) -> Tracer | None:
    """Raises ConfigError."""
    if endpoint is None:
        return None
    # Not at the top: its libraries are an extra.
    from tessera.server.tracing import Tracer

    return Tracer(endpoint)


def _keys_in(file: str) -> list[str]:
    """Reads one key per line; skips empty lines and those that begin with #. None of a file with names."""
    from tessera.server.key_file import SUFFIXES, read_key_file

    if file.endswith(SUFFIXES):
        return []
    try:
        lines = [line.strip() for line in read_key_file(file).decode("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"--api-key-file '{file}' is not UTF-8 text.") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        # Otherwise an accidentally empty file would open the server to everyone.
        raise ConfigError(f"--api-key-file '{file}' contains no key; write one per line.")
    return keys


def allowed_hosts(names: tuple[str, ...], options: ServeOptions, *, guarded: bool) -> tuple[str, ...]:
    """The hosts given; if none were, this machine's own names, but only for an unprotected server on a loopback
    address.

    An API key protects the server, and a server on a network is meant to be reached under names not known here.
    """
    if names:
        return () if "*" in names else names
    host = options.host
    if guarded or options.uds is not None or not is_loopback(host):
        return ()
    return tuple(dict.fromkeys((*_LOCAL_NAMES, f"[{host}]" if ":" in host else host)))


def _cors(values: Mapping[str, Any]) -> CorsRules | None:
    if "allowed_origins" not in values:
        if any(values.get(name) for name in ("allowed_methods", "allowed_headers", "allow_credentials")):
            raise ConfigError("--allowed-methods, --allowed-headers and --allow-credentials require --allowed-origins.")
        return None
    rules = record_of(CorsRules, SERVER_FLAGS, values)
    if rules.credentials and "*" in rules.origins:
        raise ConfigError("--allow-credentials needs explicit --allowed-origins: '*' would let every web page in.")
    return rules


def _root_path(path: str) -> str:
    trimmed = path.rstrip("/")
    if trimmed and (not trimmed.startswith("/") or "//" in trimmed):
        raise ConfigError(f"--root-path must be a path such as /tessera, got '{path}'.")
    return trimmed


# ---- one run --------------------------------------------------------------------


@dataclass(frozen=True)
class _Served:
    """One run of the server, from starting the engine to the exit code. began: on the monotonic clock."""

    config: EngineConfig
    settings: ServerSettings
    supervision: Supervision
    child: EngineChild
    listener: socket.socket
    template: TemplateOptions
    options: ServeOptions
    announce: Announcer
    began: float

    async def until_end(self) -> int:
        """Starts the engine, serves, and reports when ready."""
        text = text_workers_of(self.config, self.template)
        media = media_workers_of(self.config)
        try:
            make_routes = _plugin_routes(self.options.routes)
            starting = asyncio.create_task(self._start(text, media))
            # The server's libraries load in parallel with the engine.
            server = await asyncio.to_thread(_import_server)
            ready = self._ready_app(server, starting, make_routes)
            with ended_if_it_hangs(BUSY * self.supervision.stall_seconds):
                return await server.serve(ready, self.listener, self.settings)
        finally:
            if text is not None:
                await text.close()
            if media is not None:
                await media.close()

    async def _start(self, text: TextWorkers | None, media: MediaWorkers | None) -> AsyncEngine:
        from tessera.engine.async_engine import AsyncEngine

        engine = asyncio.create_task(
            AsyncEngine.start(
                self.config,
                text=text,
                media=media,
                on_progress=self.announce.progress,
                supervision=self.supervision,
                child=self.child,
            )
        )
        try:
            # The text workers are ready first, so errors in their files are reported without waiting for the engine.
            if text is not None:
                await text.ready()
            if media is not None:
                await media.ready()
            return await engine
        finally:
            engine.cancel()
            await asyncio.wait((engine,))
            self.announce.close()

    async def _ready_app(
        self,
        server: _Server,
        starting: asyncio.Task[AsyncEngine],
        make_routes: Sequence[Any],
    ) -> ReadyApp:
        engine = await starting
        app = server.create_app(engine, self.settings)
        for make in make_routes:
            app.router.routes.extend(make(engine))
        if self.options.listen_when_ready:
            open_to_clients(self.listener)
        if self.options.explain:
            self.announce.explain(choices_table(engine.info.platform, engine.info.choices))
        self.announce.ready(
            report(
                engine.info,
                model=self.settings.served_model_names[0],
                url=url_of(self.listener, tls=self.settings.tls is not None),
                socket_path=socket_path(self.listener),
                chat=engine.text is not None and engine.text.has_template,
                guarded=self.settings.guarded,
                seconds=time.monotonic() - self.began,
                page=not self.settings.disable_ui,
                pooler=None if engine.config.model.generates else engine.config.model.pooler,
                hears=engine.config.model.speech is not None,
            )
        )
        return_memory()
        answer_promptly()
        return server.ready_app(engine, app)


@dataclass(frozen=True)
class _Server:
    create_app: Callable[[AsyncEngine, ServerSettings], Starlette]
    ready_app: type[ReadyApp]
    serve: Callable[[Coroutine[Any, Any, ReadyApp], socket.socket, ServerSettings], Coroutine[Any, Any, int]]


def _import_server() -> _Server:
    from tessera.server.app import create_app
    from tessera.server.serve import ReadyApp, serve

    return _Server(create_app, ReadyApp, serve)


def _plugin_routes(names: Sequence[str]) -> list[Any]:
    """Functions from the engine to a list of routes."""
    if not names:
        return []
    from tessera.plugins import load_path, load_plugins
    from tessera.plugins.extensions import named_routes

    plugins = load_plugins(read_environment())
    return [load_path(path) for path in named_routes(plugins, names)]
