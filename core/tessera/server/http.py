"""uvicorn's HTTP protocol with a limit on what comes before a body, and deaf to wishes for another protocol.

The parser itself takes a request line and headers of any size, and drops the body of a request that offers an upgrade,
as Java's HTTP client does.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tessera.server.errors import error_body

_GOODBYE_SECONDS = 1.0


def limited_protocol(max_bytes: int) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn's `http`; over the limit it answers 431 and closes."""

    class LimitedHttpProtocol(HttpToolsProtocol):
        head_bytes = 0
        in_body = False

        def shutdown(self) -> None:
            super().shutdown()
            if self.transport.is_closing():
                # TLS waits for the client's own goodbye, which one that reads nothing does not send.
                self.loop.call_later(_GOODBYE_SECONDS, self.transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data if self.in_body else without_upgrade(data))

        def on_headers_complete(self) -> None:
            self.in_body = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self.in_body = False
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
            if self.head_bytes > max_bytes:
                raise HeadTooLarge

        def send_400_response(self, msg: str) -> None:
            """What uvicorn calls when its parser gives up, also on what a callback raises."""
            too_large = self.head_bytes > max_bytes
            text = f"The request line and headers have at most {max_bytes} bytes." if too_large else msg
            body = error_body(text, "invalid_request_error")
            status = b"431 Request Header Fields Too Large" if too_large else b"400 Bad Request"
            head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, len(body)) + body)
            self.transport.close()

    return LimitedHttpProtocol


def without_upgrade(head: bytes) -> bytes:
    """The same with the header under another name of its length. A JSON body has no such line."""
    for name, other in ((b"Upgrade", b"Ignored"), (b"upgrade", b"ignored")):
        head = head.replace(b"\r\n%b:" % name, b"\r\n%b:" % other)
    return head


class HeadTooLarge(Exception):  # noqa: N818 - stops the parser, is never shown
    """The request line and headers are over their limit."""
