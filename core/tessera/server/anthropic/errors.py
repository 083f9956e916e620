"""Errors in Anthropic's format, for its routes: whatever part of the server raised them."""

from __future__ import annotations

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.server.http import ErrorBody, body_of
from tessera.server.sse import EventWire

PREFIX = "/v1/messages"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_decoder = msgspec.json.Decoder(ErrorBody)


class AnthropicErrors:
    """ASGI middleware: rewrites the bodies of errors on Anthropic's routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def rewritten(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is None or message["type"] != "http.response.body":
                await send(message)
                return
            begun, start = start, None
            body = _rewritten(message.get("body", b""), begun["status"])
            headers = [(name, value) for name, value in begun["headers"] if name != b"content-length"]
            if not message.get("more_body", False):
                headers.append((b"content-length", b"%d" % len(body)))
            await send({**begun, "headers": headers})
            await send({**message, "body": body})

        await self._app(scope, receive, rewritten)


def _rewritten(body: bytes, status: int) -> bytes:
    try:
        message = _decoder.decode(body).error.message
    except msgspec.DecodeError:
        return body
    return _body(message, _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error"))


def _body(message: str, kind: str) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def _event(error: Exception) -> bytes:
    message = _decoder.decode(body_of(error)).error.message
    return b"event: error\ndata: " + _body(message, "api_error") + b"\n\n"


EVENTS = EventWire(_event, b"")
