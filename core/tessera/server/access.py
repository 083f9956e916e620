"""Request ids, counts of HTTP requests, and the access log."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import OverloadedError
from tessera.log import about
from tessera.server.http import REQUEST_ID, REQUEST_ID_HEADER, ClientGone, error_response, header
from tessera.server.security import HEALTH_PATHS
from tessera.server.unknown_fields import UnknownFields

_LOG = logging.getLogger(__name__)
_UNLOGGED = HEALTH_PATHS | {"/metrics", "/load"}
_CLIENT_GONE = 499
_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


class Counts:
    """HTTP requests: how many are in progress, how many of those generate, and how many are done by (method, route,
    status). Also the unknown fields of their bodies.

    A path that is not a route counts as "other", so that clients cannot grow the table.
    """

    def __init__(self) -> None:
        self.in_progress = 0
        self.generating = 0
        self.unknown_fields = UnknownFields()
        self.done: Counter[tuple[str, str, int]] = Counter()

    @contextmanager
    def one_generating(self) -> Iterator[None]:
        """Counts a request as generating, from reading its body to the end of its response."""
        self.generating += 1
        try:
            yield
        finally:
            self.generating -= 1


def request_id_of(scope: Scope) -> str:
    """The id that a request has in its response headers, in its completion's id and in every log line."""
    request_id: str = scope[REQUEST_ID]
    return request_id


def name_by_body(scope: Scope, body_id: str) -> None:
    """Sets the request's id to that in its body, unless it has a valid X-Request-Id header."""
    scope[REQUEST_ID] = _given_id(scope) or body_id


def _given_id(scope: Scope) -> str | None:
    given = (header(scope, REQUEST_ID_HEADER) or b"").decode("latin-1")
    return given if _ID.fullmatch(given) else None


class Access:
    """ASGI middleware: gives each request an id (its X-Request-Id or a new one), counts it and logs it. Answers 503
    while max_requests are in progress, but to health checks. routes: returns the application's routes. unlogged: paths
    of routes whose requests are not logged, besides those of health checks and metrics."""

    def __init__(
        self,
        app: ASGIApp,
        counts: Counts,
        routes: Callable[[], Sequence[BaseRoute]],
        max_requests: int,
        unlogged: Sequence[str],
    ) -> None:
        self._app = app
        self._counts = counts
        self._routes = routes
        self._max_requests = max_requests
        self._unlogged = _UNLOGGED.union(unlogged)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID] = _given_id(scope) or uuid.uuid4().hex
        status = 0
        began = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, request_id_of(scope).encode())]
            await send(message)

        self._counts.in_progress += 1
        try:
            if self._counts.in_progress > self._max_requests and scope["path"] not in HEALTH_PATHS:
                error = OverloadedError("Too many requests are in progress; try again.")
                await error_response(error)(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
            status = status or _CLIENT_GONE
        except ClientGone:
            status = _CLIENT_GONE
        except Exception as error:
            error.add_note(f"request {request_id_of(scope)}")  # shown below the traceback in the log
            raise
        finally:
            self._counts.in_progress -= 1
            self._record(scope, status or 500, time.monotonic() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = self._route(scope)
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
        self._counts.done[method, route, status] += 1
        if route not in self._unlogged:
            _LOG.info("%s %s %d %.3fs", method, route, status, seconds, extra=about(request_id_of(scope)))

    def _route(self, scope: Scope) -> str:
        """The path of the request's route, such as /v1/models/{model}, or "other" if there is none."""
        if "route" in scope:
            return str(scope["route"].path_format)
        # Refused before it reached the router.
        path: str = scope["path"]
        return path if any(getattr(route, "path", None) == path for route in self._routes()) else "other"
