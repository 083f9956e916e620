"""API keys: what each stands for, and what requests with it may do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tessera.errors import RequestError

if TYPE_CHECKING:
    from starlette.types import Scope

KEY = "tessera.key"
"""The key under which the ASGI scope of a request holds its ApiKey."""


class KeyNotAllowedError(RequestError):
    """The key is known, but this is not for it."""

    status = 403
    code = "permission_denied"


@dataclass(frozen=True)
class Quota:
    """How much a key may have. None: no limit."""

    # that may begin within a minute
    requests_per_minute: int | None = None
    # of prompts and answers, within a minute
    tokens_per_minute: int | None = None
    # in progress
    concurrent_requests: int | None = None


@dataclass(frozen=True)
class ApiKey:
    """A key that clients send, and what it stands for."""

    # for logs and metrics; no two keys of a server have the same
    name: str
    # SHA-256 of the key, so that the key itself is nowhere
    digest: bytes = field(repr=False)
    # that requests with it belong to; "": none, because there is no other
    tenant: str
    quota: Quota = Quota()
    # names that its requests may give; None: all
    models: frozenset[str] | None = None
    # whether it may change what is served
    admin: bool = False

    def allows(self, model: str) -> bool:
        return self.models is None or model in self.models


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def plain_keys(keys: Sequence[str], quota: Quota) -> list[ApiKey]:
    """Keys that have no names. Each is a tenant, named by its number so that the key is never shown, unless there is
    one alone."""
    several = len(set(keys)) > 1
    names = [f"key {number}" for number in range(len(keys))]
    return [
        ApiKey(name, digest(key.encode()), name if several else "", quota)
        for name, key in zip(names, keys, strict=True)
    ]


def allows(scope: Scope, model: str) -> bool:
    """Whether the request's key may use a model; True for a server without keys."""
    key: ApiKey | None = scope.get(KEY)
    return key is None or key.allows(model)


def check_allows(scope: Scope, model: str) -> None:
    """Raises KeyNotAllowedError unless the request's key may use the model."""
    if not allows(scope, model):
        message = f"This API key may not use the model `{model[:256]}`; /v1/models lists those that it may."
        raise KeyNotAllowedError(message, param="model", code="model_not_found")


def check_admin(scope: Scope) -> None:
    """Raises KeyNotAllowedError unless the request's key may change what is served."""
    key: ApiKey | None = scope.get(KEY)
    if key is None or not key.admin:
        raise KeyNotAllowedError("This needs an API key with `admin: true` in the server's file of keys.")
