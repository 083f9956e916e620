"""Which web pages may read answers (CORS): starlette's rules, with refusals in OpenAI's form."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from tessera.errors import RequestError
from tessera.server.errors import error_response
from tessera.server.settings import CorsRules

_READABLE_HEADERS = ("X-Request-Id", "Retry-After")


class OriginError(RequestError):
    status = 403
    code = "origin_not_allowed"


class Cors(CORSMiddleware):
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
        refusal = error_response(OriginError("The server does not let this page's origin, method or headers in."))
        refusal.headers["Vary"] = "Origin"
        return refusal
