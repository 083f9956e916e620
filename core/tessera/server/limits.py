"""Limits on clients: size and speed of request bodies, memory of all bodies together, requests per API key."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import OverloadedError, RequestError, TesseraError, TooLargeError
from tessera.server.http import error_response, header, refuse
from tessera.server.security import KEY_NUMBER
from tessera.server.settings import Limits

_GZIP = 16 + zlib.MAX_WBITS
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods whose body, if they have one, may be of any type."""


class UnsupportedMediaTypeError(RequestError):
    status = 415


class RequestTimeoutError(RequestError):
    status = 408


class RateLimitError(RequestError):
    status, kind, code = 429, "rate_limit_error", "rate_limit_exceeded"


class RequestsPerKey:
    """ASGI middleware inside ApiKeys: answers 429 while a key has `most` requests in progress, so that one client
    leaves room for the others."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._in_progress: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = scope.get(KEY_NUMBER)
        if key is None:
            await self._app(scope, receive, send)
        elif self._in_progress[key] >= self._most:
            error = RateLimitError(f"This API key is at its limit of {self._most} requests in progress; try again.")
            await error_response(error)(scope, receive, send)
        else:
            self._in_progress[key] += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._in_progress[key] -= 1


class BodyLimits:
    """ASGI middleware: refuses a body that is not JSON, is too large or too slow, or exceeds the memory for the bodies
    of all requests. untyped: how the paths begin whose bodies may be JSON without saying so, as Ollama's tools send
    them.

    Bytes are counted as they arrive.
    """

    def __init__(self, app: ASGIApp, limits: Limits, untyped: tuple[str, ...] = ()) -> None:
        self._app = app
        self._limits = limits
        self._untyped = untyped
        self._held = HeldBytes(limits.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif error := self._refusal(scope):
            await refuse(error, receive, send)
        else:
            packed = header(scope, b"content-encoding") == b"gzip"
            body = CountedBody(receive, self._limits, self._held, packed=packed)
            try:
                await self._app(scope, body.receive, send)
            except BodyRefused as refused:
                await refuse(refused.error, receive, send)
            finally:
                body.release()

    def _refusal(self, scope: Scope) -> TesseraError | None:
        """The error that the headers alone show, if any."""
        digits = header(scope, b"content-length") or b"0"
        length = digits.lstrip(b"0")[:20]  # int() refuses thousands of digits
        if not digits.isdigit() or int(length or b"0") > self._limits.body_bytes:
            return _too_large(self._limits)
        if (not length and header(scope, b"transfer-encoding") is None) or scope["method"] in _WITHOUT_BODY:
            return None
        if (header(scope, b"content-encoding") or b"identity") not in (b"gzip", b"identity"):
            return UnsupportedMediaTypeError("The body may be compressed by gzip, and by nothing else.")
        kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        untyped = scope["path"].startswith(self._untyped) and not _of_a_page(scope)
        if kind != b"application/json" and not untyped:
            return UnsupportedMediaTypeError('The body must be JSON: send the header "Content-Type: application/json".')
        return None


def _of_a_page(scope: Scope) -> bool:
    """Whether a web page may have sent this: any page can send any server a body that is not JSON by its headers, and
    the browser then adds one of these."""
    return header(scope, b"origin") is not None or header(scope, b"sec-fetch-site") is not None


class Expander(Protocol):
    """zlib's object, whose type has no public name."""

    @property
    def eof(self) -> bool: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class HeldBytes:
    """The size of the bodies of all requests in progress, in bytes. most: the limit."""

    def __init__(self, most: int) -> None:
        self.held = 0
        self.most = most


class CountedBody:
    """Wraps `receive`. It raises BodyRefused if this body or all bodies together are too large, and RequestTimeoutError
    if the body does not arrive in time. packed: the body is compressed by gzip; it is counted as it is afterwards, and
    no more of it is expanded than the limit allows."""

    def __init__(self, receive: Receive, limits: Limits, all_bodies: HeldBytes, *, packed: bool = False) -> None:
        self._receive = receive
        self._limits = limits
        self._deadline = time.monotonic() + limits.body_seconds
        self._all = all_bodies
        self._held = 0
        self._complete = False
        self._expander = zlib.decompressobj(_GZIP) if packed else None

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimeoutError("The request body did not arrive in time.") from error
        self._complete = not message.get("more_body", False)
        if self._expander is not None and message["type"] == "http.request":
            message = {**message, "body": self._expanded(self._expander, message.get("body", b""))}
        self._count(len(message.get("body", b"")))
        return message

    def _expanded(self, expander: Expander, data: bytes) -> bytes:
        """Raises BodyRefused."""
        try:
            body = expander.decompress(data, self._limits.body_bytes - self._held + 1)
        except zlib.error:
            raise BodyRefused(RequestError("The body is not compressed by gzip, as its header says.")) from None
        if expander.unused_data:
            raise BodyRefused(RequestError("The body goes on after its compressed part."))
        if self._complete and not expander.eof and not expander.unconsumed_tail:
            raise BodyRefused(RequestError("The compressed body was cut short."))
        return body

    def _count(self, size: int) -> None:
        self._held += size
        self._all.held += size
        if self._held > self._limits.body_bytes:
            raise BodyRefused(_too_large(self._limits))
        if self._all.held > self._all.most:
            raise BodyRefused(OverloadedError("Request memory is full; try again."))

    def release(self) -> None:
        """Stops counting the body, because its request is done."""
        self._all.held -= self._held
        self._held = 0


class BodyRefused(Exception):  # noqa: N818 - a signal between two classes of this module, never an error that is shown
    """Reading the body stops; `error` says why."""

    def __init__(self, error: TesseraError) -> None:
        super().__init__()
        self.error = error


def _too_large(limits: Limits) -> TooLargeError:
    return TooLargeError(f"The request body is larger than the limit of {limits.body_bytes} bytes.")
