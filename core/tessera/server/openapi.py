"""JsonRoute, the class of the API's routes; the OpenAPI 3.1 document and the page that shows it.

The document is generated from the msgspec structs that requests are decoded into and responses are encoded from.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tessera._version import __version__
from tessera.server.http import ErrorBody
from tessera.server.security import OPEN_PATHS
from tessera.server.unserved import why_not

_PAGE = Path(__file__).with_name("docs.html")
# The page may load nothing from elsewhere, and connect only to this server.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
EVENT_STREAM = "text/event-stream"
_JSON = "application/json"
_REFERENCE = "#/components/schemas/{name}"

Schemas = Mapping[Any, Mapping[str, Any]]


def field_schema(**schema: Any) -> msgspec.Meta:
    """Adds to a field's JSON schema without changing how the field is decoded."""
    return msgspec.Meta(extra_json_schema=schema)


Handler = Callable[[Request], Awaitable[ASGIApp]]
"""Returns a Response or another ASGI application, which then responds."""


class JsonRoute(APIRoute):
    """A route whose endpoint decodes its request with msgspec. FastAPI's parsing of bodies and parameters, and its
    serialization, are not used. As in Starlette, a function or a method is a Handler, and any other endpoint is an ASGI
    application. A route with GET also has HEAD.
    """

    def __init__(
        self,
        path: str,
        endpoint: Handler | ASGIApp,
        summary: str,
        *,
        methods: Sequence[str] = ("GET",),
        body: type[msgspec.Struct] | None = None,
        answer: Any = None,
        body_type: str = _JSON,
        media_type: str = _JSON,
        stream: str = "",
    ) -> None:
        """body: the struct of the request, and answer: that of the response, or a list of such, for the document;
        body_type, media_type: their media types. stream: the media type of a response in pieces; "" for none."""
        allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
        self.handler_or_app = endpoint
        super().__init__(
            path, _no_parameters, methods=allowed, summary=summary, response_model=None, include_in_schema=False
        )
        self.documented_methods = tuple(methods)
        self.body = body
        self.answer = answer
        self.body_type = body_type
        self.media_type = media_type
        self.stream = stream
        self.app = _handler_app(cast(Handler, endpoint)) if inspect.isroutine(endpoint) else cast(ASGIApp, endpoint)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As any route, but what a known route that is not served is called is no id: that is a 404 which says so."""
        match, found = super().matches(scope)
        if match is not Match.NONE and self.param_convertors and why_not(scope["path"]) is not None:
            return Match.NONE, {}
        return match, found

    @property
    def kinds(self) -> list[Any]:
        """The structs of its requests and responses."""
        return [kind for kind in (self.body, self.answer) if kind is not None]

    def at(self, path: str) -> JsonRoute:
        """The same route at another path."""
        return JsonRoute(
            path,
            self.handler_or_app,
            f"The same as {self.path}.",
            methods=self.documented_methods,
            body=self.body,
            answer=self.answer,
            body_type=self.body_type,
            media_type=self.media_type,
            stream=self.stream,
        )

    def operations(self, schemas: Schemas, error: type[msgspec.Struct]) -> dict[str, Any]:
        """The route's OpenAPI path item. schemas: the schema of each struct. error: the struct of errors."""
        answer: dict[str, Any] = {
            self.media_type: {"schema": schemas[self.answer] if self.answer else {"type": "string"}}
        }
        if self.stream:
            answer[self.stream] = {}
        operation: dict[str, Any] = {
            "summary": self.summary,
            "responses": {
                "200": {"description": "The response.", "content": answer},
                "default": {"description": "An error.", "content": {_JSON: {"schema": schemas[error]}}},
            },
        }
        if self.param_convertors:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in self.param_convertors
            ]
        if self.body is not None:
            operation["requestBody"] = {"required": True, "content": {self.body_type: {"schema": schemas[self.body]}}}
        if self.path in OPEN_PATHS:
            operation["security"] = []
        name = re.sub(r"[^a-z0-9]+", "_", self.path_format).rstrip("_")
        methods = [method.lower() for method in self.documented_methods]
        return {method: {**operation, "operationId": f"{method}{name}"} for method in methods}


def _no_parameters() -> None:
    """What FastAPI looks for parameters in: there are none for it to parse."""


def _handler_app(handler: Handler) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


class MethodRoutes(JsonRoute):
    """Routes of the same path, each with methods of its own, as one: so that a method that none has is a 405 that names
    those of all."""

    def __init__(self, *routes: JsonRoute) -> None:
        self._routes = {method: route for route in routes for method in route.methods or ()}
        (path,) = {route.path for route in routes}
        methods = [method for route in routes for method in route.documented_methods]
        super().__init__(path, routes[0].app, routes[0].summary or "", methods=methods)
        self.app = self._dispatch

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._routes[scope["method"]].app(scope, receive, send)

    @property
    def kinds(self) -> list[Any]:
        return [kind for route in self._routes.values() for kind in route.kinds]

    def operations(self, schemas: Schemas, error: type[msgspec.Struct]) -> dict[str, Any]:
        every = (route.operations(schemas, error) for route in self._routes.values())
        return {name: said for operations in every for name, said in operations.items()}


def openapi(
    routes: Iterable[BaseRoute], *, errors: Mapping[str, type[msgspec.Struct]], guarded: bool, root_path: str
) -> dict[str, Any]:
    """The OpenAPI document of an application's routes. A plugin's routes are in it if they are FastAPI routes. errors:
    the struct of errors on paths that begin so, if it is another one than OpenAI's. guarded: routes need an API key.
    root_path: the path prefix that a reverse proxy adds."""
    routes = list(routes)
    own = [route for route in routes if isinstance(route, JsonRoute)]
    kinds: list[Any] = [ErrorBody, *errors.values()]
    kinds += dict.fromkeys(kind for route in own for kind in route.kinds)
    references, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    named = dict(zip(kinds, references, strict=True))
    document = get_openapi(
        title="Tessera",
        version=__version__,
        summary="An LLM server with OpenAI's API.",
        routes=routes,
        servers=[{"url": root_path}] if root_path else None,
    )
    for route in own:
        error = next((errors[begin] for begin in errors if route.path.startswith(begin)), ErrorBody)
        document["paths"][route.path_format] = route.operations(named, error)
    components = document.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | schemas
    if guarded:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def docs_routes(
    routes: Callable[[], Iterable[BaseRoute]],
    *,
    errors: Mapping[str, type[msgspec.Struct]],
    guarded: bool,
    root_path: str,
) -> list[Route]:
    """/openapi.json, generated from `routes` at its first request; and /docs, the page that shows it. The others are
    those of openapi()."""
    made: list[bytes] = []
    page = _PAGE.read_bytes()

    async def document(_request: Request) -> Response:
        if not made:
            made.append(msgspec.json.encode(openapi(routes(), errors=errors, guarded=guarded, root_path=root_path)))
        return Response(made[0], media_type=_JSON)

    async def docs(_request: Request) -> Response:
        return Response(page, headers={"Content-Security-Policy": _PAGE_POLICY}, media_type="text/html")

    return [Route("/openapi.json", document), Route("/docs", docs)]
