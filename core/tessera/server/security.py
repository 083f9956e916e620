"""Who is let in: the API key, as pure ASGI middleware."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.errors import AuthenticationError
from tessera.server.connection import header
from tessera.server.errors import error_response

# All other paths need the key, those of routes that do not exist included.
OPEN_PATHS = frozenset({"/health", "/livez", "/readyz"})
KEY_IN_SCOPE = "tessera.key"
"""Where a request's scope has the number of the key it bears."""


class ApiKeys:
    """Lets a request through if it bears one of the keys or its path is open.

    Hashes are compared, all of them, so that the time taken tells nothing.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._hashes = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (number := self._key_of(scope)) is not None:
            scope[KEY_IN_SCOPE] = number
            await self._app(scope, receive, send)
        else:
            error = AuthenticationError('The API key is missing or wrong: send the header "Authorization: Bearer KEY".')
            await error_response(error)(scope, receive, send)

    def _key_of(self, scope: Scope) -> int | None:
        scheme, _, token = (header(scope, b"authorization") or b"").partition(b" ")
        given = _digest(token.strip())
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        return matches.index(True) if scheme.lower() == b"bearer" and any(matches) else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
