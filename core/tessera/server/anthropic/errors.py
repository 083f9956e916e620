"""Errors in Anthropic's form."""

from __future__ import annotations

import msgspec

from tessera.server.http import detail_of
from tessera.server.sse import EventWire

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_form(message: str, status: int) -> bytes:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


EVENTS = EventWire(lambda error: b"event: error\ndata: " + error_form(detail_of(error).message, 500) + b"\n\n", b"")
