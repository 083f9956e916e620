"""Errors in Anthropic's form."""

from __future__ import annotations

import msgspec

from tessera.server.error_forms import Form
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


class AnthropicErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    error: AnthropicErrorDetail


def error_form(message: str, status: int) -> bytes:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode(AnthropicError(AnthropicErrorDetail(kind, message)))


FORM = Form(AnthropicError, error_form, request_id=b"request-id")
EVENTS = EventWire(lambda error: b"event: error\ndata: " + error_form(detail_of(error).message, 500) + b"\n\n", b"")
