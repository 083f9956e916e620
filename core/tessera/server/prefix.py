"""The path prefix under which a proxy shows the server."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """ASGI middleware: takes the prefix off where the proxy leaves it on, before anything looks at the path."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(f"{self._prefix}/"):
            scope["path"] = path.removeprefix(self._prefix)
        await self._app(scope, receive, send)
