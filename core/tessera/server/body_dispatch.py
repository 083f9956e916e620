"""Routes of several APIs at one path, of which a request's body says which it is for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import RequestError
from tessera.server.decode import decoded
from tessera.server.http import read_body
from tessera.server.openapi import JsonRoute


def by_member(path: str, routes: Mapping[str, JsonRoute], summary: str = "") -> JsonRoute:
    """One route with a POST: a body that has one of these members goes to its route. The first one is documented.
    summary: "" is that one's."""
    first = next(iter(routes.values()))
    return JsonRoute(
        path,
        _Dispatch({name: route.app for name, route in routes.items()}),
        summary or first.summary or "",
        methods=("POST",),
        body=first.body,
        answer=first.answer,
        stream=first.stream,
    )


class _Dispatch:
    """An ASGI application that hands a request to the one of others whose member its body has."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = apps
        fields = [(name, msgspec.Raw, msgspec.Raw(b"")) for name in apps]
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Members", fields))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        members = decoded(self._decoder, body)
        app = next((app for name, app in self._apps.items() if bytes(getattr(members, name))), None)
        if app is None:
            *names, last = self._apps
            raise RequestError(f"Send one of {', '.join(names)} and {last}.", param=names[0])
        unread: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def again() -> Message:
            nonlocal unread
            message, unread = unread, None
            return await receive() if message is None else message

        await app(scope, again, send)
