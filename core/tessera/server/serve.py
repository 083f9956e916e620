"""Runs the application on a bound socket, from before the model is loaded until a signal or the end of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.errors import EngineDeadError, OverloadedError
from tessera.server.app import outermost
from tessera.server.connections import Acceptor, Connections, closing, most_connections
from tessera.server.http import error_response, json_response, not_ready, refuse
from tessera.server.http1 import Http1Protocol
from tessera.server.page import Page, opened_by_browser
from tessera.server.security import HEALTH_PATHS, OPEN_PATHS
from tessera.server.settings import ServerSettings

if TYPE_CHECKING:
    from tessera.engine.engine_handle import Health

_LOG = logging.getLogger(__name__)
# How long streams have to tell their clients that the engine died or the server is shutting down.
_FAREWELL_SECONDS = 2.0
# How long connections that were made last have to send their first request.
_FIRST_REQUEST_SECONDS = 1.0
_FIRST_REQUEST_LOOKS = 100
_LIVE = "/livez"


class HttpServer(uvicorn.Server):
    """uvicorn's server with a limit on connections and without its signal handlers; stops when should_exit is set."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._connections = Connections(most_connections(settings.max_connections))
        self._limits, self._tls = settings.limits, settings.tls
        super().__init__(_config(app, settings))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()

        def protocol() -> Http1Protocol:
            return Http1Protocol(self.config, self.server_state, self.lifespan.state, self._limits, self._connections)

        seconds = self._limits.header_seconds
        self._acceptors = [Acceptor(one, protocol, self._connections, self._tls, seconds) for one in sockets or ()]
        self.servers = cast("list[asyncio.Server]", self._acceptors)  # uvicorn closes them
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers whoever the system had connected by now: a proxy does not repeat a POST that it has sent."""
        for acceptor in self._acceptors:
            acceptor.finish()
        for one in sockets or ():
            one.close()
        for _ in range(_FIRST_REQUEST_LOOKS):
            if self.force_exit or not self._awaits_first_requests():
                break
            await asyncio.sleep(_FIRST_REQUEST_SECONDS / _FIRST_REQUEST_LOOKS)
        await super().shutdown(sockets)

    def _awaits_first_requests(self) -> bool:
        connections = cast("set[Http1Protocol]", self.server_state.connections)
        arriving = any(acceptor.num_arriving for acceptor in self._acceptors)
        return arriving or any(connection.cycle is None for connection in connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Backend(Protocol):
    """What answers an application's requests: an engine, or several models."""

    @property
    def health(self) -> Health: ...

    async def wait_dead(self) -> None:
        """Returns when it has ended for good."""
        ...

    async def shutdown(self) -> None: ...


@dataclass(frozen=True)
class ReadyApp:
    """The application, and its backend, which is ready to serve."""

    engine: Backend
    app: Starlette


async def serve(starting: Coroutine[Any, Any, ReadyApp], listener: socket.socket, settings: ServerSettings) -> int:
    """Serves until it is told to stop or the engine dies; then shuts the engine down and returns the exit code. Raises
    what `starting` raises.

    Until `starting` is done, /livez answers 200 and everything else 503; but if the listener does not listen yet,
    `starting` makes it listen at its end, and until then nobody can connect.

    After SIGTERM, SIGINT or SIGHUP the server accepts no new connections, and requests in progress have
    settings.drain_seconds to finish; the exit code is 0. SIGTERM first leaves settings.shutdown_delay_seconds in
    which all requests are served and /readyz answers 503. A second signal cuts requests off; the exit code is 1. A
    signal before `starting` is done stops it at once; the exit code is 0. With a file of keys or a certificate,
    SIGHUP reads those again instead. If the engine dies for good, streams end with an error event, every other
    request gets a 503, and the exit code is 4.
    """
    door = Door(_loading_app(settings))
    server = HttpServer(door, settings)
    opened = asyncio.Event()
    if _listens(listener):
        opened.set()
    running = asyncio.create_task(_serve_once(opened, server, listener))
    start = asyncio.create_task(starting)
    reloads = [one.read_again for one in (settings.key_file, settings.tls) if one is not None]
    with _signals(reloads) as signals:
        told = asyncio.create_task(signals.get())
        try:
            await asyncio.wait((running, start, told), return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                return _ended(running)
            ready = start.result()
            await door.open(ready.app)
            opened.set()
            return await _until_end(ready.engine, door, server, running, told, signals, settings)
        finally:
            opened.set()
            await _cancel(start, told)
            await _close(running, server)


async def _serve_once(opened: asyncio.Event, server: HttpServer, listener: socket.socket) -> None:
    await opened.wait()
    if _listens(listener):
        await server.serve(sockets=[listener])
    else:  # it was stopped before it was ready
        listener.close()


def _listens(listener: socket.socket) -> bool:
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


async def _until_end(
    engine: Backend,
    door: Door,
    server: HttpServer,
    running: asyncio.Task[None],
    told: asyncio.Task[int],
    signals: asyncio.Queue[int],
    settings: ServerSettings,
) -> int:
    dying = asyncio.create_task(engine.wait_dead())
    try:
        await asyncio.wait((running, dying, told), return_when=asyncio.FIRST_COMPLETED)
        if told.done() and not dying.done() and not running.done():
            again = asyncio.create_task(signals.get())
            try:
                if told.result() == signal.SIGTERM and settings.shutdown_delay_seconds:
                    await _leave(door, settings.shutdown_delay_seconds, running, dying, again)
                code = await _drain(running, dying, again, server, settings.drain_seconds)
            finally:
                await _cancel(again)
        else:
            code = _ended(running)
        if dying.done():
            _LOG.error("The server is shutting down. %s", engine.health.error)
            code = EngineDeadError.exit_code
        server.should_exit = True
        await engine.shutdown()
        return code
    finally:
        await _cancel(dying)


async def _leave(door: Door, seconds: float, *ends: asyncio.Task[Any]) -> None:
    """Serves on, and says that it is about to end. ends: what ends this early."""
    _LOG.info("No longer ready. Serving for %.0f s more, so that no load balancer sends anything here.", seconds)
    door.leave()
    await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def _drain(
    running: asyncio.Task[None],
    dying: asyncio.Task[None],
    again: asyncio.Task[int],
    server: HttpServer,
    seconds: float,
) -> int:
    """again: ends with the second signal."""
    _LOG.info("No new connections. Requests in progress have %.0f s to finish; a second signal cuts them off.", seconds)
    server.should_exit = True
    await asyncio.wait((running, dying, again), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        _LOG.warning("Cutting off requests in progress: %s.", "second signal" if again.done() else "out of time")
    return 1 if again.done() else 0


def _ended(running: asyncio.Task[None]) -> int:
    """The exit code if there are no requests to wait for: 1 if the server stopped by itself, else 0. Raises the error
    that stopped it."""
    if running.done():
        running.result()
        return 1
    return 0


async def _close(running: asyncio.Task[None], server: HttpServer) -> None:
    """Gives open streams time to tell their clients that the engine has ended, then stops the server."""
    server.should_exit = True
    await asyncio.wait((running,), timeout=_FAREWELL_SECONDS)
    server.force_exit = True
    for task in set(server.server_state.tasks):
        task.cancel()
    await asyncio.wait((running,), timeout=_FAREWELL_SECONDS)
    await _cancel(running)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
    )
    config.load()
    return config


@contextlib.contextmanager
def _signals(reloads: Sequence[Callable[[], None]]) -> Iterator[asyncio.Queue[int]]:
    """A queue that receives SIGTERM, SIGINT and, unless `nohup` has it ignored, SIGHUP. reloads: called at SIGHUP
    instead, on other threads."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[int] = asyncio.Queue()
    kinds = [signal.SIGTERM, signal.SIGINT]
    if not reloads and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        kinds.append(signal.SIGHUP)  # its terminal is closed
    for kind in kinds:
        loop.add_signal_handler(kind, queue.put_nowait, kind)
    if reloads:
        kinds.append(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, lambda: [loop.run_in_executor(None, reload) for reload in reloads])
    try:
        yield queue
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)


# ---- while the model loads, and before the end -----------------------------------------------------------------------


class LoadingApp:
    """The application until the model is loaded: /livez answers 200 and everything else 503. page: shown to browsers;
    it waits until the model is loaded."""

    def __init__(self, page: Page | None) -> None:
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = OverloadedError("The model is still loading; try again.")
        if scope["path"] in OPEN_PATHS:
            live = scope["path"] == _LIVE
            answer = json_response({"status": "ok"}) if live else not_ready({"status": "starting"})
            await answer(scope, receive, send)
        elif self._page is not None and opened_by_browser(scope):
            await self._page.instead_of(error_response(error))(scope, receive, send)
        else:
            await refuse(error, receive, send)


def _loading_app(settings: ServerSettings) -> ASGIApp:
    app: ASGIApp = LoadingApp(None if settings.disable_ui else Page.read())
    for layer in reversed(list(outermost(settings))):
        app = layer.cls(app, *layer.args, **layer.kwargs)
    return app


class Leaving:
    """The application of a server that is about to end: /readyz and its like answer 503, everything else is served, and
    each connection is closed after its answer, so that a proxy sends the next request elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in HEALTH_PATHS - {_LIVE}:
            await not_ready({"status": "shutting down"})(scope, receive, closing(send))
        else:
            await self._app(scope, receive, closing(send))


class Door:
    """The ASGI application that listens from the start. Until open(), `starting` answers; after that, the opened
    application does."""

    def __init__(self, starting: ASGIApp) -> None:
        self._app = starting
        self._lifespan = AsyncExitStack()

    async def open(self, app: Starlette) -> None:
        """Starts `app`, which answers all requests from now on."""
        await self._lifespan.enter_async_context(app.router.lifespan_context(app))
        self._app = app

    def leave(self) -> None:
        """From now on the server says that it is about to end."""
        self._app = Leaving(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._lifespan.aclose()
        await send({"type": "lifespan.shutdown.complete"})
