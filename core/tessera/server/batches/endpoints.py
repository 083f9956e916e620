"""Asks routes of this server in process, so that a line of a batch is read, checked and answered by the very code that
answers it over HTTP."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope

from tessera.errors import RequestError, TesseraError
from tessera.log import about
from tessera.server.access import request_id_of
from tessera.server.batches.protocol import ENDPOINTS
from tessera.server.decode import asks_for_nothing, decoded
from tessera.server.generation.prepare import PRIORITY
from tessera.server.http import REQUEST_ID, error_response
from tessera.server.keys import KEY
from tessera.server.openapi import JsonRoute
from tessera.server.security import TENANT
from tessera.server.tracing import TRACE

if TYPE_CHECKING:
    from tessera.server.key_file import KeyFile
    from tessera.server.tracing import Tracer

_LOG = logging.getLogger(__name__)
LEAST_URGENT = 2**31
"""The priority of a batch's requests: no body can ask for one that is less urgent, or as little."""


@dataclass(frozen=True)
class EndpointResponse:
    """What the route responded; body: JSON."""

    status: int
    request_id: str
    body: bytes


class Endpoints:
    """The routes that a batch may ask. apps: what answers at each of ENDPOINTS. keys: with the models that a tenant may
    use. tracer: gets spans of the requests."""

    def __init__(self, apps: Mapping[str, ASGIApp], keys: KeyFile | None = None, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self._keys = keys
        self._apps = apps

    async def post(self, url: str, body: bytes, tenant: str, traceparent: str = "") -> EndpointResponse:
        """Errors are answers too, as over HTTP. tenant: on whose behalf. traceparent: as the header; "" for none."""
        response = _Response()
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": url,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"traceparent", traceparent.encode())],
            REQUEST_ID: uuid.uuid4().hex,
            TENANT: tenant,
            PRIORITY: LEAST_URGENT,
            KEY: None if self._keys is None else self._keys.of_tenant(tenant),
        }
        if self._tracer is not None:
            scope[TRACE] = self._tracer.trace(scope)
        receive = _receive_of(body)
        try:
            _check_whole(body)
            await self._apps[url](scope, receive, response.send)
        except TesseraError as error:
            await error_response(error)(scope, receive, response.send)
        except Exception as error:  # noqa: BLE001 - a bug ends one request, as it does over HTTP
            _LOG.exception("A request of a batch failed.", extra=about(request_id_of(scope)))
            await error_response(error)(scope, receive, response.send)
        return EndpointResponse(response.status, request_id_of(scope), bytes(response.body))


def endpoint_apps(routes: Iterable[BaseRoute]) -> dict[str, ASGIApp]:
    """routes: those of a server of one model, or a part of them."""
    return {route.path: route.app for route in routes if isinstance(route, JsonRoute) and route.path in ENDPOINTS}


class _Response:
    """Collects what a route sends."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")


def _receive_of(body: bytes) -> Receive:
    """An ASGI `receive` of a client that sends the body and then stays."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        stays: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await stays

    return receive


class _Modes(msgspec.Struct):
    stream: msgspec.Raw = msgspec.Raw(b"")
    background: msgspec.Raw = msgspec.Raw(b"")


_MODES = msgspec.json.Decoder(_Modes)


def _check_whole(body: bytes) -> None:
    """Raises RequestError for a request whose answer does not come in one piece."""
    modes = decoded(_MODES, body)
    for name in _Modes.__struct_fields__:
        raw = bytes(getattr(modes, name))
        if raw and not asks_for_nothing(raw, (False,)):
            raise RequestError(f"{name} cannot be used in a batch; remove it.", param=name)
