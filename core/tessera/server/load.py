"""GET /load: how many requests the engine has in work, for balancers that ask each server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from tessera.server.context import ServerContext


class Load:
    """HTTP requests that generate, from their first byte to the end of their answer."""

    def __init__(self) -> None:
        self.in_progress = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1


def routes(context: ServerContext) -> list[Route]:
    async def load(_request: Request) -> Response:
        content = msgspec.json.encode({"server_load": context.load.in_progress})
        return Response(content, media_type="application/json")

    return [Route("/load", load)]
