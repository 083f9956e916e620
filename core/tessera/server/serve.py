"""Runs the application on a bound socket, from before the model is loaded until a signal or the end of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
from collections.abc import Coroutine, Generator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tessera.errors import EngineDeadError, OverloadedError
from tessera.server.http import error_body, error_response, json_response, not_ready, refuse
from tessera.server.page import Page, opened_by_browser
from tessera.server.security import OPEN_PATHS
from tessera.server.settings import Limits, ServerSettings

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine

_LOG = logging.getLogger(__name__)
# How long streams have to tell their clients that the engine died or the server is shutting down.
_LAST_WORDS_SECONDS = 2.0
_CLOSE_SECONDS = 1.0
_LIVE = "/livez"


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers; it stops when should_exit is set."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True)
class ReadyApp:
    """The application, and its engine, which is ready to serve."""

    engine: AsyncEngine
    app: Starlette


async def serve(starting: Coroutine[Any, Any, ReadyApp], listener: socket.socket, settings: ServerSettings) -> int:
    """Serves until it is told to stop or the engine dies; then shuts the engine down and returns the exit code. Raises
    what `starting` raises.

    Until `starting` is done, /livez answers 200 and everything else 503.

    After SIGTERM or SIGINT the server accepts no new connections, and requests in progress have settings.drain_seconds
    to finish; the exit code is 0. A second signal cuts them off; the exit code is 1. A signal before `starting` is done
    stops it at once; the exit code is 0. If the engine dies for good, streams end with an error event, every other
    request gets a 503, and the exit code is 4.
    """
    door = Door(None if settings.disable_ui else Page.read())
    server = Server(_config(door, settings))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    start = asyncio.create_task(starting)
    with _signals() as signals:
        told = asyncio.create_task(signals.get())
        try:
            await asyncio.wait((running, start, told), return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                return _ended(running)
            ready = start.result()
            await door.open(ready.app)
            return await _until_end(ready.engine, server, running, told, signals, settings.drain_seconds)
        finally:
            await _cancel(start, told)
            await _close(running, server)


async def _until_end(
    engine: AsyncEngine,
    server: Server,
    running: asyncio.Task[None],
    told: asyncio.Task[int],
    signals: asyncio.Queue[int],
    drain_seconds: float,
) -> int:
    dying = asyncio.create_task(engine.wait_dead())
    try:
        await asyncio.wait((running, dying, told), return_when=asyncio.FIRST_COMPLETED)
        if told.done() and not dying.done() and not running.done():
            code = await _drain(running, dying, server, signals, drain_seconds)
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


async def _drain(
    running: asyncio.Task[None],
    dying: asyncio.Task[None],
    server: Server,
    signals: asyncio.Queue[int],
    seconds: float,
) -> int:
    _LOG.info("No new connections. Requests in progress have %.0f s to finish; a second signal cuts them off.", seconds)
    server.should_exit = True
    again = asyncio.create_task(signals.get())
    await asyncio.wait((running, dying, again), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    cut_off = again.done()
    await _cancel(again)
    if not running.done():
        _LOG.warning("Cutting off requests in progress: %s.", "second signal" if cut_off else "out of time")
    return 1 if cut_off else 0


def _ended(running: asyncio.Task[None]) -> int:
    """The exit code if there are no requests to wait for: 1 if the server stopped by itself, else 0. Raises the error
    that stopped it."""
    if running.done():
        running.result()
        return 1
    return 0


async def _close(running: asyncio.Task[None], server: Server) -> None:
    """Gives open streams time to tell their clients that the engine has ended, then stops the server."""
    server.should_exit = True
    await asyncio.wait((running,), timeout=_LAST_WORDS_SECONDS)
    server.force_exit = True
    for task in set(server.server_state.tasks):
        task.cancel()
    await asyncio.wait((running,), timeout=_LAST_WORDS_SECONDS)
    await _cancel(running)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=limited_protocol(settings.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
    )
    config.load()
    config.ssl = settings.tls
    return config


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Queue[int]]:
    """A queue that receives SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[int] = asyncio.Queue()
    kinds = (signal.SIGTERM, signal.SIGINT)
    for kind in kinds:
        loop.add_signal_handler(kind, queue.put_nowait, kind)
    try:
        yield queue
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)


# ---- while the model loads -------------------------------------------------------------------------------------------


class Door:
    """The ASGI application that listens from the start. Until open() it answers that the model is loading; after that,
    the opened application answers. page: shown to browsers from the start; it waits until the model is loaded."""

    def __init__(self, page: Page | None) -> None:
        self._page = page
        self._app: Starlette | None = None
        self._lifespan = AsyncExitStack()

    async def open(self, app: Starlette) -> None:
        """Starts `app`, which answers all requests from now on."""
        await self._lifespan.enter_async_context(app.router.lifespan_context(app))
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        else:
            await self._starting(scope, receive, send)

    async def _starting(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = OverloadedError("The model is still loading; try again.")
        if scope["path"] in OPEN_PATHS:
            live = scope["path"] == _LIVE
            answer = json_response({"status": "ok"}) if live else not_ready({"status": "starting"})
            await answer(scope, receive, send)
        elif self._page is not None and opened_by_browser(scope):
            await self._page.instead_of(error_response(error))(scope, receive, send)
        else:
            await refuse(error, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._lifespan.aclose()
        await send({"type": "lifespan.shutdown.complete"})


# ---- HTTP/1.1 on the wire --------------------------------------------------------------------------------------------


def limited_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol class with these limits for the request line and headers, and for clients that do not read."""
    own = {"max_bytes": limits.header_bytes, "write_seconds": limits.write_seconds}
    return type("Limited", (LimitedHttpProtocol,), own)


class LimitedHttpProtocol(HttpToolsProtocol):
    """Answers 431 and closes the connection if the request line and headers exceed max_bytes, ends the connection of a
    client that reads nothing of what waits for it in write_seconds, and ignores offers to upgrade to another protocol.

    The parser itself accepts headers of any size, and it drops the body of a request that offers an upgrade, such as
    those of Java's HTTP client.
    """

    max_bytes: int
    write_seconds: float
    write_timer: asyncio.TimerHandle | None = None
    unsent = 0
    head_bytes = 0
    in_body = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unsent = self.transport.get_write_buffer_size()
        self.write_timer = self.loop.call_later(self.write_seconds, self.abort_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.write_timer is not None:
            self.write_timer.cancel()

    def abort_unread(self) -> None:
        """Closes the connection of a client that has read nothing since the timer began."""
        left = self.transport.get_write_buffer_size()
        if left < self.unsent:
            self.unsent = left
            self.write_timer = self.loop.call_later(self.write_seconds, self.abort_unread)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.write_timer is not None:
            self.write_timer.cancel()
        super().connection_lost(exc)

    def connection_made(self, transport: Any) -> None:
        self.without_upgrade = WithoutUpgrade()
        super().connection_made(transport)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            # TLS waits for the client to close as well, and a client that has stopped reading never does.
            self.loop.call_later(_CLOSE_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data if self.in_body else self.without_upgrade(data))

    def on_headers_complete(self) -> None:
        self.in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.in_body, self.without_upgrade = False, WithoutUpgrade()
        super().on_message_complete()

    def on_message_begin(self) -> None:
        self.head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self.head_bytes += size
        if self.head_bytes > self.max_bytes:
            raise HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the parser fails, which includes exceptions raised in these callbacks."""
        too_large = self.head_bytes > self.max_bytes
        text = f"The request line and headers are larger than the limit of {self.max_bytes} bytes."
        body = error_body(text if too_large else msg, "invalid_request_error")
        status = b"431 Request Header Fields Too Large" if too_large else b"400 Bad Request"
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()


class WithoutUpgrade:
    """Renames the Upgrade header in a request's head, which may arrive in pieces. A JSON body has no such line: its
    strings escape line breaks."""

    LINE = b"\r\nupgrade:"

    def __init__(self) -> None:
        self._held = b""  # may be the start of the header
        self._last = b""  # bytes returned so far, where the head may end

    def __call__(self, data: bytes) -> bytes:
        """What to parse now. The rest comes with the next piece."""
        data = _UPGRADE.sub(b"\r\nignored:", self._held + data)
        size = 0
        if b"\r\n\r\n" not in self._last + data:
            starts = range(min(len(self.LINE) - 1, len(data)), 0, -1)
            size = next((n for n in starts if self.LINE.startswith(data[-n:].lower())), 0)
        data, self._held = data[: len(data) - size], data[len(data) - size :]
        self._last = (self._last + data)[-3:]
        return data


_UPGRADE = re.compile(WithoutUpgrade.LINE, re.IGNORECASE)


class HeadTooLarge(Exception):  # noqa: N818 - stops the parser, is never shown
    """The request line and headers exceed their limit."""
