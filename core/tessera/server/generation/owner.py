"""Whose a request is, how urgent, and what it may share with others: its priority, tenant, cache salt and adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.generation.fields import GenerationFields
from tessera.server.security import client_of, tenant_of
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits

_PRIORITIES = range(-(2**31), 2**31)
PRIORITY = "tessera.priority"
"""The key under which the ASGI scope of a request holds a priority that goes before the body's."""


@dataclass(frozen=True)
class RequestOwner:
    """Whose request it is, how urgent, and for which adapter."""

    # 32 bits, signed; a lower one is more urgent
    priority: int
    # requests with different ones share no cached prefix
    cache_salt: str
    # of the scheduling policy `fair`; "": the cache salt stands for it
    tenant: str
    # the folder of the adapter; "" for none
    adapter: str
    # who takes turns with others at the text workers
    client: str

    @classmethod
    def from_request(
        cls, context: ServerContext, model: ServedModel, request: GenerationFields, scope: Scope
    ) -> RequestOwner:
        """Raises RequestError."""
        limits = context.settings.limits
        salt = _cache_salt(request, limits)
        if not context.settings.shared_prefix_cache and (key := tenant_of(scope)):
            salt = f"{key}\n{salt}"  # no tenant has a line break, so no two of these pairs are the same text
        return cls(_priority(request, scope), salt, _tenant(request, limits, scope), model.adapter, client_of(scope))

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of AsyncEngine.generate."""
        return vars(self)


def _priority(request: GenerationFields, scope: Scope) -> int:
    priority = request.priority or 0
    if priority not in _PRIORITIES:
        raise RequestError("priority must be a 32-bit integer.", param="priority")
    return int(scope.get(PRIORITY, priority))


def _tenant(request: GenerationFields, limits: Limits, scope: Scope) -> str:
    """The tenant for --scheduling-policy fair: that of the API key if it has one, else the request's `user`. If empty,
    the engine uses the cache salt."""
    if request.user is not None and len(request.user) > limits.salt_chars:
        raise RequestError(f"user must be at most {limits.salt_chars} characters long.", param="user")
    return tenant_of(scope) or request.user or ""


def _cache_salt(request: GenerationFields, limits: Limits) -> str:
    """Requests of a tenant share cached prefixes only if they have the same salt. prompt_cache_key is another name for
    it."""
    name = "cache_salt" if request.cache_salt is not None else "prompt_cache_key"
    salt = getattr(request, name) or ""
    if len(salt) > limits.salt_chars:
        raise RequestError(f"{name} must be at most {limits.salt_chars} characters long.", param=name)
    return str(salt)
