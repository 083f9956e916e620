"""How many requests one API key may have in work: so that one tenant leaves room for the others."""

from __future__ import annotations

from collections import Counter

from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.errors import RequestError
from tessera.server.errors import error_response
from tessera.server.security import KEY_IN_SCOPE


class RateLimitError(RequestError):
    status, kind, code = 429, "rate_limit_error", "rate_limit_exceeded"


class PerKey:
    """ASGI middleware behind ApiKeys: refuses what is over `most`."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._in_work: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = scope.get(KEY_IN_SCOPE)
        if key is None:
            await self._app(scope, receive, send)
        elif self._in_work[key] >= self._most:
            error = RateLimitError(f"This API key has {self._most} requests in work, as many as it may; try again.")
            await error_response(error)(scope, receive, send)
        else:
            self._in_work[key] += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._in_work[key] -= 1
