"""Errors as HTTP answers: OpenAI's body with its four keys, and nothing of the machine's insides."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tessera.errors import AuthenticationError, EngineDeadError, EngineStepError, OverloadedError, TesseraError
from tessera.server.request_ids import id_of

# What a client cannot mend is told in these words; the log has the cause.
_ENGINE_DEAD = "The engine is not running."
_ENGINE_FAILED = "The engine could not compute this request."
_SERVER_FAILED = "The server failed on this request; its log says why."
_NO_ROUTE = "There is no such route; OpenAI's routes begin with /v1 and end without a slash."
_HTTP_MESSAGES = {404: _NO_ROUTE, 405: "This route does not take this method."}
_MAX_MESSAGE_CHARS = 1000
_RETRY_SECONDS = "1"
_RETRIED = frozenset({429, 503})


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def body_of(error: Exception) -> bytes:
    """The body for any exception: a user's error in its words, anything else without a detail."""
    if isinstance(error, EngineDeadError):
        return error_body(_ENGINE_DEAD, error.kind, None, error.code)
    if isinstance(error, EngineStepError):
        return error_body(_ENGINE_FAILED, error.kind, None, error.code)
    if isinstance(error, TesseraError) and (error.status < 500 or isinstance(error, OverloadedError)):
        return error_body(error.message[:_MAX_MESSAGE_CHARS], error.kind, error.param, error.code)
    return error_body(_SERVER_FAILED, "internal_error")


def status_of(error: Exception) -> int:
    return error.status if isinstance(error, TesseraError) else 500


def error_response(error: Exception) -> Response:
    headers, status = {}, status_of(error)
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    if status in _RETRIED:
        headers["Retry-After"] = _RETRY_SECONDS
    return Response(body_of(error), status, headers, media_type="application/json")


def on_tessera_error(_request: Request, error: Exception) -> Response:
    return error_response(error)


def on_http_exception(request: Request, error: Exception) -> Response:
    """Routing's own errors: no such route, or not with this method. OPTIONS asks for no more than the methods."""
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS" and error.status_code == 405:
        return Response(status_code=204, headers=error.headers)
    message = _HTTP_MESSAGES.get(error.status_code, "The request was refused.")
    code = "unknown_url" if error.status_code == 404 else None
    body = error_body(message, "invalid_request_error", None, code)
    return Response(body, error.status_code, error.headers, media_type="application/json")


def on_unforeseen(request: Request, error: Exception) -> Response:
    """A bug: Starlette raises it again after this answer, so that the log has its traceback."""
    response = error_response(error)
    if request_id := id_of(request.scope):
        response.headers["X-Request-Id"] = request_id
    return response


def handlers() -> dict[Any, Any]:
    """Starlette's table of exception handlers."""
    return {TesseraError: on_tessera_error, HTTPException: on_http_exception, Exception: on_unforeseen}
