"""HTTP/1.1 on the wire: uvicorn's protocol with limits on a request's head and on waiting for it, and without upgrades
to another protocol."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tessera.server.connections import Connection, Connections
from tessera.server.http import error_body
from tessera.server.reader_watch import ReaderWatch
from tessera.server.settings import Limits

_LOG = logging.getLogger(__name__)
_CLOSE_SECONDS = 1.0
_HALF_SENT_SECONDS = 2.0
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""The headers that say where a request ends, and whether another may follow."""
_NO_HTTP = "Invalid HTTP request received."


class HttpRefusal(Exception):  # noqa: N818 - stops the parser; the client gets its status and message
    """A request cannot be accepted. status: the status line's code and reason."""

    def __init__(self, status: bytes, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Http1Protocol(HttpToolsProtocol, Connection):
    """Answers 431 and closes the connection if the request line and headers exceed limits.header_bytes, 408 if they are
    not there within header_seconds, ends the connection of a client that reads nothing of what waits for it in
    write_seconds, and ignores offers to upgrade to another protocol, as RFC 9110, section 7.8, lets a server do.

    The parser itself accepts headers of any size. At an offer it gives up framing: it takes the request for one without
    a body, and what follows, which is the body, for the next request. A parser that knows of no offer then reads on.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        limits: Limits,
        open_connections: Connections,
    ) -> None:
        """config, server_state, app_state: uvicorn's. open_connections: those of which this is one."""
        super().__init__(config, server_state, app_state)
        self.arriving: asyncio.Task[None] | None = None
        self._limits = limits
        self._open = open_connections
        self._running: RequestResponseCycle | None = None
        """The request that is being answered; those in the pipeline wait for it."""
        self._head_bytes = 0
        self._in_head = True
        self._offers_upgrade = False
        """The head just read has an offer, and the parser is about to stop."""
        self._refusal: HttpRefusal | None = None
        self._restoring = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._reader: ReaderWatch

    # ---- calls of the event loop and of uvicorn ----------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._reader = ReaderWatch(transport, self._limits.write_seconds, self.loop)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting()
        self._reader.stop()
        self._open.remove(self)
        self.pipeline.clear()
        if self._running is not None:  # the base class tells the request that came last alone
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            # TLS waits for the client to close as well, and a client that has stopped reading never does.
            self.loop.call_later(_CLOSE_SECONDS, self.transport.abort)
        elif self.cycle.more_body:
            self.loop.call_later(_HALF_SENT_SECONDS, self._end_half_sent)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.stop()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def abort(self) -> None:
        """Closes the connection without a word."""
        if self.arriving is not None:
            self.arriving.cancel()
        if self.transport is not None:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._open.idle(self)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        began = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]
        if self._head_timer is None and not began:
            self._await_head()
        try:
            while True:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as stopped:
                    data = data[stopped.args[0] :]
                    self._parse_without_upgrade()
        except httptools.HttpParserError:
            self.send_400_response(_NO_HTTP)

    def _parse_without_upgrade(self) -> None:
        """Replaces the parser by one that is where the request's body begins. It is told the headers that frame the
        request, as the first parser read them."""
        head = [b"POST / HTTP/%b" % self.scope["http_version"].encode()]
        head += [b"%b: %b" % header for header in self.headers if header[0] in _FRAMING]
        self._offers_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._restoring = True
        self.parser.feed_data(b"\r\n".join((*head, b"", b"")))

    # ---- calls of the parser ---------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._restoring:
            self._head_bytes, self._in_head = 0, True
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._restoring:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._restoring:
            self._count(len(name) + len(value))
            if self._in_head:  # a trailer of a chunked body is no header
                super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._restoring:
            self._restoring = False  # what comes next, such as the end of a request without a body, is meant
            return
        self._in_head = False
        self._stop_awaiting()
        self._open.busy(self)
        if self.parser.get_method() == b"CONNECT":
            raise self._refused(b"400 Bad Request", "This server is no proxy.")
        if sum(name == b"host" for name, _ in self.headers) > 1:
            # RFC 9112, section 3.2. A proxy in front may have taken the other one for the host.
            raise self._refused(b"400 Bad Request", "A request has one Host header.")
        self._offers_upgrade = self.parser.should_upgrade()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offers_upgrade:
            super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes:
            raise self._refused(
                b"431 Request Header Fields Too Large",
                f"The request line and headers are larger than the limit of {self._limits.header_bytes} bytes.",
            )

    def _refused(self, status: bytes, message: str) -> HttpRefusal:
        self._refusal = HttpRefusal(status, message)
        return self._refusal

    # ---- limits on waiting -------------------------------------------------------

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.header_seconds, self._head_late)

    def _stop_awaiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes:
            self._refuse(HttpRefusal(b"408 Request Timeout", "The request's headers did not arrive in time."))
        else:
            self.transport.close()

    def _end_half_sent(self) -> None:
        """Ends a request whose body has not arrived by now, while the server shuts down."""
        if self.transport.is_closing() or not self.cycle.more_body:
            return
        if self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(HttpRefusal(b"503 Service Unavailable", "The server is shutting down."))

    # ---- refusals --------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Called when the parser fails, which includes exceptions raised in its calls."""
        self._refuse(self._refusal or HttpRefusal(b"400 Bad Request", msg))

    def _refuse(self, refusal: HttpRefusal) -> None:
        _LOG.info("a connection is closed: %s", refusal.message)
        body = error_body(refusal.message, "invalid_request_error")
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (refusal.status, len(body)) + body)
        self.transport.close()
