"""Whose share of the places a request takes where clients have keys of their own: that of its key."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.server.security import KEY_IN_SCOPE

_IN_SCOPE = "tessera.tenant"


class KeyTenants:
    """ASGI middleware behind ApiKeys. A tenant is named by its key's number, so that nothing shows the key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if KEY_IN_SCOPE in scope:
            scope[_IN_SCOPE] = f"key {scope[KEY_IN_SCOPE]}"
        await self._app(scope, receive, send)


def key_tenant(scope: Scope) -> str:
    """Empty where keys tell no clients apart."""
    tenant: str = scope.get(_IN_SCOPE, "")
    return tenant
