"""What the body of a request must be: JSON, of a size, in time, and with room for it beside all others."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import OverloadedError, RequestError, TesseraError, TooLargeError
from tessera.server.connection import header
from tessera.server.errors import error_response
from tessera.server.settings import Limits

_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_DRAIN_BYTES = 2**28
_DRAIN_SECONDS = 10.0


class UnsupportedMediaTypeError(RequestError):
    status = 415


class RequestTimeoutError(RequestError):
    status = 408


class BodyRules:
    """ASGI middleware. Bytes are counted while they are read, in the request's own count and in that of all."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._in_flight = BytesInFlight(limits.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
        elif error := self._refusal(scope):
            await refuse(error, scope, receive, send)
        else:
            await self._pass_on(scope, receive, send)

    def _refusal(self, scope: Scope) -> TesseraError | None:
        length = header(scope, b"content-length") or b"0"
        if not length.isdigit() or int(length[:20]) > self._limits.body_bytes:
            return too_large(self._limits.body_bytes)
        if int(length) == 0 and header(scope, b"transfer-encoding") is None:
            return None
        kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            return UnsupportedMediaTypeError('The body must be JSON: send the header "Content-Type: application/json".')
        return None

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = CountedBody(receive, self._limits, self._in_flight)
        try:
            await self._app(scope, body.receive, send)
        except BodyRefused as refused:
            await refuse(refused.error, scope, receive, send)
        finally:
            body.release()


def too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(f"The body of a request has at most {max_bytes} bytes.")


class BodyRefused(Exception):  # noqa: N818 - a signal between two classes of this module, never an error that is shown
    """A body is not read any further, for the reason in `error`."""

    def __init__(self, error: TesseraError) -> None:
        super().__init__()
        self.error = error


class BytesInFlight:
    """Bytes of bodies whose requests are in work, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self.held = 0
        self.most = most


class CountedBody:
    """`receive` that raises when the body is too large or too slow, or when all bodies together are too large."""

    def __init__(self, receive: Receive, limits: Limits, in_flight: BytesInFlight) -> None:
        self._receive = receive
        self._most = limits.body_bytes
        self._deadline = time.monotonic() + limits.body_seconds
        self._in_flight = in_flight
        self._held = 0
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimeoutError("The body of the request did not arrive in time.") from error
        self._count(len(message.get("body", b"")))
        self._complete = not message.get("more_body", False)
        return message

    def _count(self, size: int) -> None:
        self._held += size
        self._in_flight.held += size
        if self._held > self._most:
            raise BodyRefused(too_large(self._most))
        if self._in_flight.held > self._in_flight.most:
            raise BodyRefused(OverloadedError("The server holds as many bytes of requests as it takes on; try again."))

    def release(self) -> None:
        """The request is done."""
        self._in_flight.held -= self._held
        self._held = 0


async def refuse(error: TesseraError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, then take in and drop what the client still sends, within bounds.

    A client that is cut off while it writes never reads the answer.
    """
    response = error_response(error)
    response.headers["Connection"] = "close"
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    await _drop_body(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop_body(receive: Receive) -> None:
    left = _DRAIN_BYTES
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
