"""Runs the application on a bound socket until a signal or the engine's death ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from tessera.errors import EngineDeadError
from tessera.server.door import Door
from tessera.server.http import limited_protocol
from tessera.server.settings import ServerSettings

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine

_LOG = logging.getLogger(__name__)
# Until streams have told their clients about an engine that died, or that the server ends.
_LAST_WORDS_SECONDS = 2.0


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: it ends when it is told to."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True)
class Started:
    """An engine that is ready, and the application over it."""

    engine: AsyncEngine
    app: Starlette


async def serve(starting: Coroutine[Any, Any, Started], listener: socket.socket, settings: ServerSettings) -> int:
    """Serves until the end and returns the exit code; the engine is shut down then. Raises what `starting` raises.

    Until `starting` is done /livez answers 200 and everything else 503.

    SIGTERM or SIGINT: no new connections, requests in work have settings.drain_seconds, exit 0; a second signal
    cuts them off, exit 1. Before the start is done there are none, and the first ends it. An engine that died for good:
    streams end with an error event, everything else is a 503, exit 4.
    """
    door = Door()
    server = Server(_config(door, settings))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    start = asyncio.create_task(starting)
    with _signals() as signals:
        told = asyncio.create_task(signals.get())
        try:
            await asyncio.wait((running, start, told), return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                return _ended(running)
            started = start.result()
            await door.open(started.app)
            return await _until_end(started.engine, server, running, told, signals, settings.drain_seconds)
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
            _LOG.error("The server ends. %s", engine.health.error)
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
    _LOG.info("No new connections; requests in work have %.0f s. A second signal cuts them off.", seconds)
    server.should_exit = True
    again = asyncio.create_task(signals.get())
    await asyncio.wait((running, dying, again), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    cut_off = again.done()
    await _cancel(again)
    if not running.done():
        _LOG.warning("Requests in work are cut off: %s.", "a second signal" if cut_off else "the time is over")
    return 1 if cut_off else 0


def _ended(running: asyncio.Task[None]) -> int:
    """The exit code where no request is in work: a server that ended though nobody told it to is a failure."""
    if running.done():
        running.result()
        return 1
    return 0


async def _close(running: asyncio.Task[None], server: Server) -> None:
    """The engine has ended; what still streams says so to its client, then the server ends."""
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
        http=limited_protocol(settings.limits.header_bytes),
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
    """The signals that end a server, as they come."""
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
