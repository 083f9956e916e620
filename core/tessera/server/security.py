"""What stands before every route, as pure ASGI middleware: the API key, the kind and the size of a body."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import AuthenticationError, RequestError, TesseraError, TooLargeError
from tessera.server.errors import error_response

# All other paths need the key, those of routes that do not exist included.
OPEN_PATHS = frozenset({"/health", "/livez", "/readyz"})
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_DRAIN_BYTES = 2**28
_DRAIN_SECONDS = 10.0


class UnsupportedMediaTypeError(RequestError):
    status = 415


class RequestTimeoutError(RequestError):
    status = 408


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    return next((value for key, value in scope["headers"] if key == name), None)


class ApiKeys:
    """Lets a request through if it bears one of the keys or its path is open.

    Hashes are compared, all of them, so that the time taken tells nothing.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._hashes = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._hashes or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif self._bears_key(scope):
            await self._app(scope, receive, send)
        else:
            error = AuthenticationError('The API key is missing or wrong: send the header "Authorization: Bearer KEY".')
            await error_response(error)(scope, receive, send)

    def _bears_key(self, scope: Scope) -> bool:
        scheme, _, token = (header(scope, b"authorization") or b"").partition(b" ")
        given = _digest(token.strip())
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class BodyRules:
    """A body is JSON, no larger than its limit, counted while it is read, and arrives in time."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
        elif error := self._refusal(scope):
            await refuse(error, scope, receive, send)
        else:
            await self._pass_on(scope, receive, send)

    def _refusal(self, scope: Scope) -> TesseraError | None:
        length = header(scope, b"content-length") or b"0"
        if not length.isdigit() or int(length[:20]) > self._max_bytes:
            return self._too_large()
        kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            return UnsupportedMediaTypeError('The body must be JSON: send the header "Content-Type: application/json".')
        return None

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"The body of a request has at most {self._max_bytes} bytes.")

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = CountedBody(receive, self._max_bytes, self._seconds)
        try:
            await self._app(scope, body.receive, send)
        except BodyTooLarge:
            await refuse(self._too_large(), scope, receive, send)


class BodyTooLarge(Exception):  # noqa: N818 - a signal between two classes of this module, never an error that is shown
    """The body went over its limit."""


class CountedBody:
    """`receive` that raises when the body is too large or too slow."""

    def __init__(self, receive: Receive, max_bytes: int, seconds: float) -> None:
        self._receive = receive
        self._left = max_bytes
        self._deadline = time.monotonic() + seconds
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimeoutError("The body of the request did not arrive in time.") from error
        self._left -= len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._left < 0:
            raise BodyTooLarge
        return message


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
