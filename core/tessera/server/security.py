"""Access control: API keys, the Host header, and CORS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.errors import AuthenticationError, RequestError
from tessera.server.http import error_response, header
from tessera.server.keys import KEY, ApiKey, digest
from tessera.server.page import Page, opened_by_browser
from tessera.server.settings import CorsRules

if TYPE_CHECKING:
    from tessera.server.key_file import KeyFile

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz"})
"""The paths of health checks, which need no key and no known Host. All other paths do, even those without a route."""
HEALTH_PATHS = OPEN_PATHS | {"/ping"}
"""The paths of all health checks, which no number of requests in progress refuses."""
TENANT = "tessera.tenant"
"""The key under which the ASGI scope of a request holds the tenant that its API key stands for."""

_READABLE_HEADERS = (
    *("X-Request-Id", "Request-Id", "Retry-After"),
    *(f"X-RateLimit-{value}-{what}" for what in ("Requests", "Tokens") for value in ("Limit", "Remaining", "Reset")),
)


# ---- API keys --------------------------------------------------------------------------------------------------------


class ApiKeys:
    """ASGI middleware: answers 401 unless the request has one of the keys, as a bearer token or as x-api-key, or its
    path is open.

    Keys are looked up by their SHA-256, which nobody can steer, so that the time taken reveals nothing.

    file: further keys, as they are at the time of the request. page: the body of the 401 for a browser that opens it,
    instead of the JSON error.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[ApiKey], file: KeyFile | None = None, page: Page | None = None
    ) -> None:
        self._app = app
        self._file = file
        self._page = page
        self._keys = {key.digest: key for key in reversed(keys)}  # of equal ones, the first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (key := self._key_of(scope)) is not None:
            scope[KEY] = key
            scope[TENANT] = key.tenant
            await self._app(scope, receive, send)
        else:
            error = AuthenticationError('The API key is missing or wrong: send the header "Authorization: Bearer KEY".')
            response = error_response(error)
            if self._page is not None and opened_by_browser(scope):
                response = self._page.instead_of(response)
            await response(scope, receive, send)

    def _key_of(self, scope: Scope) -> ApiKey | None:
        scheme, _, token = (header(scope, b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            token = header(scope, b"x-api-key") or b""  # as Anthropic's clients send it
        if not token:
            return None
        hashed = digest(token.strip())
        return self._keys.get(hashed) or (None if self._file is None else self._file.by_digest.get(hashed))


def tenant_of(scope: Scope) -> str:
    """The tenant that the request's API key stands for; empty if the server has no keys or only one."""
    tenant: str = scope.get(TENANT, "")
    return tenant


def client_of(scope: Scope) -> str:
    """Who takes turns with others where they have to wait: the tenant, else the address that the request comes from."""
    client: tuple[str, int] | None = scope.get("client")
    return tenant_of(scope) or (client[0] if client else "")


# ---- the Host header -------------------------------------------------------------------------------------------------


class UnknownHostError(RequestError):
    status = 403
    code = "unknown_host"


class Hosts:
    """ASGI middleware: answers 403 if the Host header is none of `names` (`*.example.com` matches any subdomain).

    This prevents DNS rebinding. If the domain of a web page resolves to this machine, the browser takes page and server
    for the same origin and lets the page read responses, but the requests still have the page's domain as their Host.
    A request of HTTP/1.0 may have no Host: no browser sends such a one.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app = app
        lower = [name.lower() for name in names]
        self._names = frozenset(lower)
        self._suffixes = tuple(name[1:] for name in lower if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            error = UnknownHostError(
                "This server does not accept the name in the Host header; its operator can allow it with "
                "--allowed-hosts."
            )
            await error_response(error)(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        if scope.get("http_version") == "1.0" and header(scope, b"host") is None:
            return True  # no browser sends such a request
        host = host_of(scope)
        return host in self._names or host.endswith(self._suffixes)


_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(:[0-9]*)?", re.ASCII)
"""RFC 9110, section 7.2: a name or an address, and maybe a port."""


def host_of(scope: Scope) -> str:
    """The Host header without its port, in lower case; "" if there is none, or it is none."""
    match = _HOST.fullmatch((header(scope, b"host") or b"").decode("latin-1").lower())
    return "" if match is None else match[1].removesuffix(".")


# ---- web pages of other origins --------------------------------------------------------------------------------------


class OriginError(RequestError):
    status = 403
    code = "origin_not_allowed"


class Cors(CORSMiddleware):
    """Starlette's CORS middleware, with refusals in OpenAI's format."""

    def __init__(self, app: ASGIApp, rules: CorsRules) -> None:
        super().__init__(
            app,
            allow_origins=rules.origins,
            allow_methods=rules.methods,
            allow_headers=rules.headers,
            allow_credentials=rules.credentials,
            expose_headers=_READABLE_HEADERS,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        refusal = error_response(OriginError("This page's origin, method or headers are not allowed."))
        refusal.headers["Vary"] = "Origin"
        return refusal
