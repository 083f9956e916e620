"""What listens from the first moment on: while the model loads it says so, and then it is the application."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tessera.errors import OverloadedError
from tessera.server.bodies import refuse
from tessera.server.security import OPEN_PATHS

LIVE = "/livez"


class Door:
    """An ASGI application."""

    def __init__(self) -> None:
        self._app: Starlette | None = None
        self._lifespan = AsyncExitStack()

    async def open(self, app: Starlette) -> None:
        """From now on `app` answers."""
        await self._lifespan.enter_async_context(app.router.lifespan_context(app))
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        else:
            await _starting(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._lifespan.aclose()
        await send({"type": "lifespan.shutdown.complete"})


async def _starting(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] in OPEN_PATHS:
        live = scope["path"] == LIVE
        body = msgspec.json.encode({"status": "ok" if live else "starting"})
        await Response(body, 200 if live else 503, media_type="application/json")(scope, receive, send)
    else:
        await refuse(OverloadedError("The model is still loading; try again."), scope, receive, send)
