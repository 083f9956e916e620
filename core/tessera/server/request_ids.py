"""What a request goes by in its answer's head, in its completion's id and in every line of the log."""

from __future__ import annotations

import re
import uuid

from starlette.types import Scope

from tessera.server.connection import header

_IN_SCOPE = "tessera.request_id"
_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def name(scope: Scope) -> None:
    """By the client's X-Request-Id where it is one, else by a new id."""
    scope[_IN_SCOPE] = _given(scope) or uuid.uuid4().hex


def rename(scope: Scope, own: str) -> None:
    """own: what the body says it goes by; its header, where it has one, goes before that."""
    scope[_IN_SCOPE] = _given(scope) or own


def id_of(scope: Scope) -> str:
    """Empty where it has none: what is no HTTP request."""
    request_id: str = scope.get(_IN_SCOPE, "")
    return request_id


def _given(scope: Scope) -> str | None:
    given = (header(scope, b"x-request-id") or b"").decode("latin-1")
    return given if _ID.fullmatch(given) else None
