"""Reads request headers and bodies; writes JSON responses, and errors in OpenAI's format."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tessera.errors import (
    AuthenticationError,
    EngineAsleepError,
    EngineDeadError,
    EngineStepError,
    FatalRequestError,
    OverloadedError,
    RequestError,
    TesseraError,
)
from tessera.server.unserved import why_not

T = TypeVar("T")
REQUEST_ID = "tessera.request_id"
"""The key under which the ASGI scope of a request holds its id."""
REQUEST_ID_HEADER = b"x-request-id"

# The first four are errors that a client cannot fix; their cause is in the log.
_ENGINE_DEAD = "The engine is not running."
_ENGINE_ASLEEP = "The model sleeps. POST /wake_up wakes it up."
_ENGINE_FAILED = "The engine could not compute this request."
_FATAL = "The engine died each time it ran this request, which is not run again; do not send it again."
_SERVER_FAILED = "The server failed while handling this request; see its log."
_NO_ROUTE = "No such route. OpenAI's routes begin with /v1 and have no slash at the end."
_HTTP_MESSAGES = {404: _NO_ROUTE, 405: "This route does not support this method."}
_MAX_MESSAGE_CHARS = 1000
_RETRY_SECONDS = str(TesseraError.retry_seconds)
_RETRIED = frozenset({429, 503})
_DRAIN_BYTES = 2**28
_SEND_BYTES = 2**18
_DRAIN_SECONDS = 10.0


# ---- requests --------------------------------------------------------------------------------------------------------


class ClientGone(Exception):  # noqa: N818 - not an error: there is no client left to answer
    """The client closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header with this name, which is in lower case; None if there is none."""
    return next((value for key, value in scope["headers"] if key == name), None)


async def read_body(receive: Receive) -> bytes:
    """Reads the whole body, without the byte order mark that some clients write in front. Raises ClientGone if the
    client disconnects first."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks).removeprefix(codecs.BOM_UTF8)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` in this task and cancels it if the client disconnects. Call it after the body has been read, when
    the only message left to receive is the disconnect."""
    working = asyncio.current_task()
    assert working is not None
    leaving = asyncio.ensure_future(_cancel_at_disconnect(receive, working))
    try:
        await work
    except asyncio.CancelledError:
        # If nothing but the disconnect cancelled this task, clear that (as asyncio.timeout does); else pass it on.
        if not leaving.done() or working.uncancel() > 0:
            raise
    finally:
        leaving.cancel()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises ClientGone, after cancelling it, if the client disconnects. Call it as
    until_disconnect()."""
    results: list[T] = []

    async def run() -> None:
        results.append(await work)

    await until_disconnect(receive, run())
    if not results:
        raise ClientGone
    return results[0]


async def _cancel_at_disconnect(receive: Receive, working: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    working.cancel()


# ---- responses -------------------------------------------------------------------------------------------------------


class ErrorDetail(msgspec.Struct):
    """What went wrong. param: the request field to change, if there is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: ErrorDetail


class _Large(Response):
    """A response that is sent as fast as the client reads it: what the socket does not take at once is copied."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), _SEND_BYTES):
            piece = bytes(self.body[start : start + _SEND_BYTES])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_response(body: Any, status: int = 200) -> Response:
    data = msgspec.json.encode(body)
    return (Response if len(data) <= _SEND_BYTES else _Large)(data, status, media_type="application/json")


async def send_json(send: Send, pieces: Sequence[bytes]) -> None:
    """Sends JSON that comes in pieces, as fast as the client reads it."""
    length = sum(map(len, pieces))
    headers = [(b"content-length", b"%d" % length), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    some, size = [], 0
    for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= _SEND_BYTES:
            await send({"type": "http.response.body", "body": b"".join(some), "more_body": True})
            some, size = [], 0
    await send({"type": "http.response.body", "body": b"".join(some), "more_body": False})


def not_ready(body: Any) -> Response:
    """A 503 that is no error: the answer of a health check."""
    response = json_response(body, 503)
    response.headers["Retry-After"] = _RETRY_SECONDS
    return response


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, kind, param, code)))


def detail_of(error: Exception) -> ErrorDetail:
    """What a client is told of any exception. A user error keeps its message; any other reveals no details."""
    if isinstance(error, EngineDeadError):
        return ErrorDetail(_ENGINE_DEAD, error.kind, None, error.code)
    if isinstance(error, EngineAsleepError):
        return ErrorDetail(_ENGINE_ASLEEP, error.kind, None, error.code)
    if isinstance(error, EngineStepError):
        return ErrorDetail(_ENGINE_FAILED, error.kind, None, error.code)
    if isinstance(error, FatalRequestError):
        return ErrorDetail(_FATAL, error.kind, None, error.code)
    if isinstance(error, TesseraError) and (error.status < 500 or isinstance(error, OverloadedError)):
        return ErrorDetail(error.message[:_MAX_MESSAGE_CHARS], error.kind, error.param, error.code)
    return ErrorDetail(_SERVER_FAILED, "internal_error", None, None)


def body_of(error: Exception) -> bytes:
    """The response body for any exception."""
    return msgspec.json.encode(ErrorBody(detail_of(error)))


def error_response(error: Exception) -> Response:
    headers, status = {}, error.status if isinstance(error, TesseraError) else 500
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    if status in _RETRIED:
        headers["Retry-After"] = str(error.retry_seconds) if isinstance(error, TesseraError) else _RETRY_SECONDS
    if isinstance(error, FatalRequestError):
        headers["X-Should-Retry"] = "false"  # which OpenAI's and Anthropic's clients follow
    return Response(body_of(error), status, headers, media_type="application/json")


async def refuse(error: TesseraError, receive: Receive, send: Send) -> None:
    """Sends the error at once, then reads and discards the rest of the request, up to a limit in bytes and seconds. A
    client whose connection is closed while it is still sending may never read the response."""
    response = error_response(error)
    response.headers["Connection"] = "close"
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    await _drop_body(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop_body(receive: Receive) -> None:
    left = _DRAIN_BYTES
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


# ---- exceptions raised in a route ------------------------------------------------------------------------------------


def error_handlers() -> dict[Any, Any]:
    """The application's exception handlers."""
    return {
        TesseraError: _on_tessera_error,
        HTTPException: _on_http_exception,
        RequestValidationError: _on_validation_error,
        Exception: _on_bug,
    }


def _on_tessera_error(_request: Request, error: Exception) -> Response:
    return error_response(error)


def _on_http_exception(request: Request, error: Exception) -> Response:
    """The router's errors: 404, and 405, which is a 204 with the allowed methods if the client sent OPTIONS, and a 404
    where a route that is not served looks like an id."""
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS" and error.status_code == 405:
        return Response(status_code=204, headers=error.headers)
    reason = why_not(request.scope["path"]) if error.status_code in (404, 405) else None
    status = error.status_code if reason is None else 404
    message = reason or _HTTP_MESSAGES.get(status, "The request was refused.")
    body = error_body(message, "invalid_request_error", None, "unknown_url" if status == 404 else None)
    return Response(body, status, error.headers, media_type="application/json")


def _on_validation_error(_request: Request, error: Exception) -> Response:
    """Invalid parameters of a plugin's route that FastAPI parses."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return error_response(RequestError(f"{field or 'The body'}: {first['msg']}.", param=field or None))


def _on_bug(request: Request, error: Exception) -> Response:
    """Any other exception. Starlette raises it again after this response, so that its traceback is logged."""
    response = error_response(error)
    if request_id := request.scope.get(REQUEST_ID):
        response.headers[REQUEST_ID_HEADER.decode()] = request_id
    return response
