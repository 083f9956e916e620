"""How many connections the server holds: which are accepted, which of them must make room, and how long one may wait.

A connection costs a file descriptor before it has said anything, so a server without a limit can be kept from answering
by clients that say nothing. Here one that carries no request makes room for a new one, the longest idle first. When
all carry requests, some more are accepted for health checks alone.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import OverloadedError
from tessera.server.http import error_response
from tessera.server.security import HEALTH_PATHS

if TYPE_CHECKING:
    from tessera.server.certificates import Certificates

_LOG = logging.getLogger(__name__)

FOR_HEALTH = 16
"""Connections beyond the limit that are accepted for health checks."""
OWN_DESCRIPTORS = 128
"""File descriptors that are kept for everything but connections: sockets to the engine, files, processes."""
_AT_ONCE = 64
_RETRY_SECONDS = 0.1


def most_connections(limit: int) -> int:
    """The limit on connections: `limit`, or what the limit on this process's file descriptors leaves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limit
    room = max(soft - OWN_DESCRIPTORS - FOR_HEALTH, 1)
    if room < limit:
        _LOG.warning("At most %d connections: this process may open only %d files (ulimit -n).", room, soft)
    return min(limit, room)


class Connection(asyncio.Protocol):
    """What is counted. app: answers its requests. arriving: the task that TLS is agreed on in."""

    app: ASGIApp
    arriving: asyncio.Task[None] | None

    def abort(self) -> None:
        """Closes the connection without a word."""


class ConnectionPlace(Enum):
    """What a new connection may ask for."""

    ORDINARY = auto()
    HEALTH = auto()
    REFUSED = auto()


class Places:
    """Room for a number of connections. Those without a request in progress make room, the longest idle first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._taken: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        """In the order in which they became idle."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, connection: Connection) -> bool:
        """Gives a place to a new connection, which is idle. Returns whether there is one."""
        if len(self._taken) >= self._capacity and not self.drop_idle():
            return False
        self._taken.add(connection)
        self._idle[connection] = None
        return True

    def drop_idle(self) -> bool:
        """Closes the connection that has been idle for longest. Returns whether there was one."""
        connection = next(iter(self._idle), None)
        if connection is None:
            return False
        self.remove(connection)
        connection.abort()
        return True

    def busy(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        if connection in self._taken:
            self._idle[connection] = None

    def remove(self, connection: Connection) -> None:
        self._taken.discard(connection)
        self._idle.pop(connection, None)


class Connections:
    """The open connections. capacity: how many may be open, besides FOR_HEALTH for health checks. The latter have
    places of their own, which no other request takes, and in which one that asks for nothing makes room as well."""

    def __init__(self, capacity: int) -> None:
        self._ordinary = Places(capacity)
        self._health = Places(FOR_HEALTH)

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._health)

    def admit(self, connection: Connection) -> ConnectionPlace:
        """Counts a new connection, which is idle, and makes room for it if there is any; if it is for health checks
        alone, the connection is told so."""
        if self._ordinary.take(connection):
            return ConnectionPlace.ORDINARY
        connection.app = HealthOnly(connection.app)
        return ConnectionPlace.HEALTH if self._health.take(connection) else ConnectionPlace.REFUSED

    def drop_idle(self) -> None:
        """Closes a connection without a request, if there is one."""
        _ = self._ordinary.drop_idle() or self._health.drop_idle()

    def busy(self, connection: Connection) -> None:
        """It has a request."""
        for places in (self._ordinary, self._health):
            places.busy(connection)

    def idle(self, connection: Connection) -> None:
        """It has answered all of its requests."""
        for places in (self._ordinary, self._health):
            places.idle(connection)

    def remove(self, connection: Connection) -> None:
        """It is closed. May be called again."""
        for places in (self._ordinary, self._health):
            places.remove(connection)


def closing(send: Send) -> Send:
    """A `send` that closes the connection after the answer."""

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return send_last


class HealthOnly:
    """The ASGI application of a connection beyond the limit: answers health checks, refuses all else, and closes the
    connection either way."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["path"] not in HEALTH_PATHS:
            app = error_response(OverloadedError("Too many connections are open; try again."))
        await app(scope, receive, closing(send))


class Acceptor:
    """Accepts the connections of a listening socket. Takes the place of asyncio's server, which accepts as many as
    there are, and logs a traceback for each that it has no descriptor for.

    make: returns the protocol of a new connection. handshake_seconds: how long TLS may take to be agreed on.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], Connection],
        connections: Connections,
        tls: Certificates | None,
        handshake_seconds: float,
    ) -> None:
        self._listener = listener
        self._make = make
        self._connections = connections
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._arriving: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._listen()

    @property
    def num_arriving(self) -> int:
        """Connections that are accepted and not yet read from."""
        return len(self._arriving)

    def finish(self) -> None:
        """Accepts the connections that the system has already made, and none after them. The socket is the caller's;
        once it is closed, the system refuses others at once."""
        while self._accept():
            pass
        if self._again is not None:
            self._again.cancel()
        elif self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    def close(self) -> None:
        """Accepts no more connections, and gives up those that arrive."""
        if self._listener.fileno() >= 0:
            self.finish()
        for task in self._arriving:
            task.cancel()

    async def wait_closed(self) -> None:
        """There is nothing to wait for; uvicorn calls it."""

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> bool:
        """Returns whether more connections may wait."""
        for _ in range(_AT_ONCE):
            try:
                stream, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                self._pause(error)
                return False
            connection = self._make()
            admission = self._connections.admit(connection)
            if admission is ConnectionPlace.REFUSED:
                stream.close()
                continue
            task = self._loop.create_task(self._begin(connection, stream))
            connection.arriving = task
            self._arriving.add(task)
            task.add_done_callback(partial(self._begun, connection, stream))
            if admission is ConnectionPlace.HEALTH:
                # The next one might take its place, so first the loop reads what it asks for.
                return True
        return True

    def _pause(self, error: OSError) -> None:
        """This process or this machine has no descriptor or no memory left; the next attempt comes a little later."""
        self._connections.drop_idle()
        _LOG.warning("A connection could not be accepted (%s).", error.strerror)
        self._loop.remove_reader(self._listener)
        self._again = self._loop.call_later(_RETRY_SECONDS, self._listen)

    async def _begin(self, connection: Connection, stream: socket.socket) -> None:
        """Hands the stream to the event loop, after TLS is agreed on."""
        context, seconds = (None, None) if self._tls is None else (self._tls.context, self._handshake_seconds)
        stream.setblocking(False)
        await self._loop.connect_accepted_socket(lambda: connection, stream, ssl=context, ssl_handshake_timeout=seconds)

    def _begun(self, connection: Connection, stream: socket.socket, task: asyncio.Task[None]) -> None:
        self._arriving.discard(task)
        connection.arriving = None
        if task.cancelled() or task.exception() is not None:
            self._connections.remove(connection)
            stream.close()
