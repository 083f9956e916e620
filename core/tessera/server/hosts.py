"""Which names the server goes by: against pages of strangers whose own name resolves to this machine (DNS rebinding).

A browser takes such a page and the server for one site, and lets it read answers; but its requests bear the page's
name.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from tessera.errors import RequestError
from tessera.server.connection import header
from tessera.server.errors import error_response
from tessera.server.security import OPEN_PATHS


class UnknownHostError(RequestError):
    status = 403
    code = "unknown_host"


class Hosts:
    """ASGI middleware: refuses requests whose Host is none of `names` (`*.example.com`: every name under it).

    What probes ask is answered under any name: it tells nothing.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app = app
        lower = [name.lower() for name in names]
        self._names = frozenset(lower)
        self._suffixes = tuple(name[1:] for name in lower if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._known(host_of(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            error = UnknownHostError(
                "The server does not go by the name in the Host header; its operator can add it with --allowed-hosts."
            )
            await error_response(error)(scope, receive, send)

    def _known(self, host: str) -> bool:
        return host in self._names or host.endswith(self._suffixes)


def host_of(scope: Scope) -> str:
    """The Host header without its port, in lower case; "" where there is none."""
    value = (header(scope, b"host") or b"").decode("latin-1").lower()
    name = value.partition("]")[0] + "]" if value.startswith("[") else value.partition(":")[0]
    return name.removesuffix(".")
