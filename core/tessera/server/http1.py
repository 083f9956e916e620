"""HTTP/1.1 on the wire: uvicorn's protocol with limits on a request's head, and without upgrades to another protocol."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tessera.server.http import error_body

_LOG = logging.getLogger(__name__)
_CLOSE_SECONDS = 1.0
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""The headers that say where a request ends, and whether another may follow."""
_NO_HTTP = "Invalid HTTP request received."


def http_protocol(max_bytes: int) -> type[asyncio.Protocol]:
    """The protocol class with this limit for the request line and headers."""
    return type("Http1", (Http1Protocol,), {"max_bytes": max_bytes})


class HeadRefused(Exception):  # noqa: N818 - stops the parser; the client gets its status and message
    """The head of a request cannot be accepted. status: the status line's code and reason."""

    def __init__(self, status: bytes, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Http1Protocol(HttpToolsProtocol):
    """Answers 431 and closes the connection if the request line and headers exceed max_bytes, and ignores offers to
    upgrade to another protocol, as RFC 9110, section 7.8, lets a server do.

    The parser itself accepts headers of any size. At an offer it gives up framing: it takes the request for one without
    a body, and what follows, which is the body, for the next request. A parser that knows of no offer then reads on.
    """

    max_bytes: int
    head_bytes = 0
    in_head = True
    offers_upgrade = False
    """The head just read has an offer, and the parser is about to stop."""
    refusal: HeadRefused | None = None
    _restoring = False

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            # TLS waits for the client to close as well, and a client that has stopped reading never does.
            self.loop.call_later(_CLOSE_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
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
        self.offers_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._restoring = True
        self.parser.feed_data(b"\r\n".join((*head, b"", b"")))

    # ---- calls of the parser ---------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._restoring:
            self.head_bytes, self.in_head = 0, True
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._restoring:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._restoring:
            self._count(len(name) + len(value))
            if self.in_head:  # a trailer of a chunked body is no header
                super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._restoring:
            self._restoring = False  # what comes next, such as the end of a request without a body, is meant
            return
        self.in_head = False
        if self.parser.get_method() == b"CONNECT":
            raise self._refused(b"400 Bad Request", "This server is no proxy.")
        self.offers_upgrade = self.parser.should_upgrade()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.offers_upgrade:
            super().on_message_complete()

    def _count(self, size: int) -> None:
        self.head_bytes += size
        if self.head_bytes > self.max_bytes:
            raise self._refused(
                b"431 Request Header Fields Too Large",
                f"The request line and headers are larger than the limit of {self.max_bytes} bytes.",
            )

    def _refused(self, status: bytes, message: str) -> HeadRefused:
        self.refusal = HeadRefused(status, message)
        return self.refusal

    # ---- refusals --------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Called when the parser fails, which includes exceptions raised in these calls."""
        refusal = self.refusal or HeadRefused(b"400 Bad Request", msg)
        _LOG.info("refused what a connection sent: %s", refusal.message)
        body = error_body(refusal.message, "invalid_request_error")
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (refusal.status, len(body)) + body)
        self.transport.close()
