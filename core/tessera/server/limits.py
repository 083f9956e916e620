"""Limits on clients: size and speed of request bodies, memory of all bodies together, and the tokens that all ask
for."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import OverloadedError, RequestError, TesseraError, TooLargeError
from tessera.server.encoding import GZIP, IDENTITY, Gunzip
from tessera.server.http import header, refuse
from tessera.server.security import OriginError, tenant_of
from tessera.server.settings import Limits

_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods whose body, if they have one, may be of any type."""


class UnsupportedMediaTypeError(RequestError):
    status = 415


class RequestTimeoutError(RequestError):
    status = 408


class RateLimitError(RequestError):
    """retry_seconds: after which the request may be sent again."""

    status, kind, code = 429, "rate_limit_error", "rate_limit_exceeded"

    def __init__(self, message: str, retry_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_seconds = max(math.ceil(retry_seconds), 1)


@dataclass(frozen=True)
class BodyRules:
    """What the bodies of some requests may be. limits: its body_bytes and body_seconds are for one of them, and its
    bodies_bytes is for all in progress. media_type: what they must say that they are; a body of `name`, for messages.
    """

    limits: Limits
    media_type: bytes = b"application/json"
    name: str = "JSON"


class BodyLimits:
    """ASGI middleware: refuses a body that is not JSON, is too large or too slow, or exceeds the memory for the bodies
    of all requests. untyped: how the paths begin whose bodies may be JSON without saying so, as Ollama's tools send
    them. special: by method and path, the rules of bodies that are something else.

    Bytes are counted as they arrive.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        untyped: tuple[str, ...] = (),
        special: Mapping[tuple[str, str], BodyRules] = MappingProxyType({}),
    ) -> None:
        self._app = app
        self._untyped = untyped
        self._special = special
        self._json = BodyRules(limits)
        self._bytes_by_rules = {
            rules: TenantShares(rules.limits.bodies_bytes) for rules in (self._json, *special.values())
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rules = self._special.get((scope["method"], scope["path"]), self._json)
        if error := self._refusal(scope, rules):
            await refuse(error, receive, send)
        else:
            gunzip = Gunzip() if _coding(scope) in GZIP else None
            body = CountedBody(receive, rules.limits, self._bytes_by_rules[rules], gunzip, tenant_of(scope))
            try:
                await self._app(scope, body.receive, send)
            except BodyRefused as refused:
                await refuse(refused.error, receive, send)
            finally:
                body.release()

    def _refusal(self, scope: Scope, rules: BodyRules) -> TesseraError | None:
        """The error that the headers alone show, if any."""
        digits = header(scope, b"content-length") or b"0"
        length = digits.lstrip(b"0")[:20]  # int() refuses thousands of digits
        if not digits.isdigit() or int(length or b"0") > rules.limits.body_bytes:
            return _too_large(rules.limits)
        if (not length and header(scope, b"transfer-encoding") is None) or scope["method"] in _WITHOUT_BODY:
            return None
        kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        untyped = scope["path"].startswith(self._untyped) and not _of_a_page(scope)
        if kind != rules.media_type and not untyped:
            wanted = rules.media_type.decode()
            return UnsupportedMediaTypeError(
                f'The body must be {rules.name}: send the header "Content-Type: {wanted}".'
            )
        if rules is not self._json and _of_a_page(scope) and header(scope, b"authorization") is None:
            # Any page can send any server a form. A browser asks first (CORS) before it sends one with this header.
            return OriginError("A web page must send this with the header Authorization; any key will do without keys.")
        if _coding(scope) not in GZIP | IDENTITY:
            return UnsupportedMediaTypeError("The body's Content-Encoding must be gzip, or left out.")
        return None


def _of_a_page(scope: Scope) -> bool:
    """Whether a web page may have sent this: any page can send any server a body that is not JSON by its headers, and
    the browser then adds one of these."""
    return header(scope, b"origin") is not None or header(scope, b"sec-fetch-site") is not None


def _coding(scope: Scope) -> bytes:
    return (header(scope, b"content-encoding") or b"").strip().lower()


class TenantShares:
    """What all requests in progress hold together, such as bytes of bodies. limit: of all; a tenant may hold one
    fourth of it, or what one request holds if that is more. Whoever is no tenant may hold all."""

    SHARE = 4

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all = 0
        self._by_tenant: Counter[str] = Counter()

    def add(self, tenant: str, size: int) -> None:
        self._all += size
        self._by_tenant[tenant] += size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]

    def is_full(self, tenant: str, size: int) -> bool:
        """Whether what a tenant's request holds, which is `size`, is too much."""
        return self._all > self._limit or self.is_over_share(tenant, size)

    def is_over_share(self, tenant: str, size: int) -> bool:
        return bool(tenant) and self._by_tenant[tenant] > max(size, self._limit // self.SHARE)

    def is_alone(self, size: int) -> bool:
        """Whether no other request holds anything."""
        return self._all <= size


class AnswerAdmission:
    """What the answers of all requests in progress may hold together. A request is taken in any case if there is no
    other. limit: as of TenantShares. what: it is, in errors, as "tokens". fields: that ask for it."""

    def __init__(self, limit: int, what: str, fields: str) -> None:
        self._sizes = TenantShares(limit)
        self._what = what
        self._fields = fields

    @contextmanager
    def admit(self, tenant: str, size: int) -> Iterator[None]:
        """Holds the size of a request's answer until it ends. Raises RateLimitError or OverloadedError."""
        self._sizes.add(tenant, size)
        try:
            if not self._sizes.is_alone(size) and self._sizes.is_full(tenant, size):
                raise self._refusal(tenant, size)
            yield
        finally:
            self._sizes.add(tenant, -size)

    def _refusal(self, tenant: str, size: int) -> TesseraError:
        what = f"requests in progress ask for too many {self._what}: try again, or ask for less ({self._fields})."
        if self._sizes.is_over_share(tenant, size):
            return RateLimitError(f"This API key's {what}")
        return OverloadedError(f"The {what}")


class CountedBody:
    """Wraps `receive`. It raises BodyRefused if this body or all bodies together are too large, and RequestTimeoutError
    if the body does not arrive in time. gunzip: decodes the body, whose bytes are counted after that; None leaves it as
    it is. tenant: whose memory it takes."""

    def __init__(
        self,
        receive: Receive,
        limits: Limits,
        all_bodies: TenantShares,
        gunzip: Gunzip | None = None,
        tenant: str = "",
    ) -> None:
        self._receive = receive
        self._tenant = tenant
        self._gunzip = gunzip
        self._limits = limits
        self._deadline = time.monotonic() + limits.body_seconds
        self._all = all_bodies
        self._size = 0
        self._encoded = 0
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimeoutError("The request body did not arrive in time.") from error
        self._complete = not message.get("more_body", False)
        if self._gunzip is None or message["type"] != "http.request":
            self._count(len(message.get("body", b"")))
            return message
        self._encoded += len(message.get("body", b""))
        if self._encoded > self._limits.body_bytes:
            raise BodyRefused(_too_large(self._limits))
        pieces = []
        for piece in self._gunzip.pieces(message.get("body", b"")):
            self._count(len(piece))
            pieces.append(piece)
            await asyncio.sleep(0)  # a small message may hold megabytes
        if self._complete:
            self._gunzip.end()
        return {**message, "body": b"".join(pieces)}

    def _count(self, size: int) -> None:
        self._size += size
        self._all.add(self._tenant, size)
        if self._size > self._limits.body_bytes:
            raise BodyRefused(_too_large(self._limits))
        if self._all.is_full(self._tenant, self._size):
            raise BodyRefused(OverloadedError("Request memory is full; try again."))

    def release(self) -> None:
        """Stops counting the body, because its request is done."""
        self._all.add(self._tenant, -self._size)
        self._size = 0


class BodyRefused(Exception):  # noqa: N818 - a signal between two classes of this module, never an error that is shown
    """Reading the body stops; `error` says why."""

    def __init__(self, error: TesseraError) -> None:
        super().__init__()
        self.error = error


def _too_large(limits: Limits) -> TooLargeError:
    return TooLargeError(f"The request body is larger than the limit of {limits.body_bytes} bytes.")
