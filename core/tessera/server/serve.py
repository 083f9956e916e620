"""Runs the application on a bound socket until a signal or the engine's death ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from tessera.errors import EngineDeadError
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


async def serve(engine: AsyncEngine, app: ASGIApp, listener: socket.socket, settings: ServerSettings) -> int:
    """Serves until the end and returns the exit code; the engine is shut down then.

    SIGTERM or SIGINT: no new connections, requests in work have settings.drain_seconds, exit 0; a second signal
    cuts them off, exit 1. An engine that dies: streams end with an error event, everything else is a 503, exit 4.
    """
    server = Server(_config(app, settings))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    dying = asyncio.create_task(engine.wait_dead())
    with _signals() as signals:
        told = asyncio.create_task(signals.get())
        try:
            await asyncio.wait((running, dying, told), return_when=asyncio.FIRST_COMPLETED)
            if dying.done():
                dying.result()
                _LOG.error("The engine died; the server ends.")
                code = EngineDeadError.exit_code
            else:
                code = await _drain(running, server, signals, settings.drain_seconds)
            await _end(running, server, engine)
        finally:
            for task in (running, dying, told):
                task.cancel()
            await asyncio.wait((running, dying, told))
    return code


async def _drain(running: asyncio.Task[None], server: Server, signals: asyncio.Queue[int], seconds: float) -> int:
    if running.done():
        running.result()
        return 1
    _LOG.info("No new connections; requests in work have %.0f s. A second signal cuts them off.", seconds)
    server.should_exit = True
    again = asyncio.create_task(signals.get())
    await asyncio.wait((running, again), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    cut_off = again.done()
    again.cancel()
    if not running.done():
        _LOG.warning("Requests in work are cut off: %s.", "a second signal" if cut_off else "the time is over")
    return 1 if cut_off else 0


async def _end(running: asyncio.Task[None], server: Server, engine: AsyncEngine) -> None:
    """Ends the engine, so that what still streams says so to its client, then the server."""
    server.should_exit = True
    await engine.shutdown()
    await asyncio.wait((running,), timeout=_LAST_WORDS_SECONDS)
    server.force_exit = True
    for task in set(server.server_state.tasks):
        task.cancel()
    await asyncio.wait((running,), timeout=_LAST_WORDS_SECONDS)


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
