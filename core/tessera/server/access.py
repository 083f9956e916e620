"""Every request gets an id, is counted and, when it is done, is one line in the log."""

from __future__ import annotations

import logging
import time
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import OverloadedError
from tessera.log import about
from tessera.server.connection import ClientGone
from tessera.server.errors import error_response
from tessera.server.request_ids import id_of, name
from tessera.server.security import OPEN_PATHS

_LOG = logging.getLogger(__name__)
_UNLOGGED = OPEN_PATHS | {"/metrics", "/ping", "/load"}
_CLIENT_GONE = 499


class HttpCounts:
    """Requests in work, and done by (method, route, status).

    A route that does not exist counts as "other", so that clients cannot add to the table.
    """

    def __init__(self) -> None:
        self.in_progress = 0
        self.done: Counter[tuple[str, str, int]] = Counter()


class Access:
    """Echoes X-Request-Id or makes one up, counts, logs, and refuses what is over the number of requests in work."""

    def __init__(self, app: ASGIApp, counts: HttpCounts, routes: frozenset[str], max_requests: int) -> None:
        self._app = app
        self._counts = counts
        self._routes = routes
        self._max_requests = max_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name(scope)
        status = 0
        began = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id_of(scope).encode())]
            await send(message)

        self._counts.in_progress += 1
        try:
            if self._counts.in_progress > self._max_requests and scope["path"] not in OPEN_PATHS:
                await _refuse(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
            status = status or _CLIENT_GONE
        except ClientGone:
            status = _CLIENT_GONE
        except Exception as error:
            error.add_note(f"request {id_of(scope)}")  # for whoever logs it
            raise
        finally:
            self._counts.in_progress -= 1
            self._record(scope, status or 500, time.monotonic() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope["path"] if scope["path"] in self._routes else "other"
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
        self._counts.done[method, route, status] += 1
        if route not in _UNLOGGED:
            _LOG.info("%s %s %d %.3fs", method, route, status, seconds, extra=about(id_of(scope)))


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = OverloadedError("The server has as many requests in work as it takes on; try again.")
    await error_response(error)(scope, receive, send)
