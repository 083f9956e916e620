"""OpenAI's routes at the paths where other servers' clients look for them: llama.cpp's, which have no /v1 (but for its
/completions, an API of its own), and SageMaker's /invocations
(https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from tessera.errors import RequestError
from tessera.server.decode import decoded
from tessera.server.http import read_body
from tessera.server.openapi import EVENT_STREAM, JsonRoute

_CHAT, _COMPLETIONS, _MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"


def routes(server_routes: Iterable[Route]) -> list[JsonRoute]:
    """server_routes: the routes of the server, those of chat, completions and models among them."""
    found = {route.path: route for route in server_routes if isinstance(route, JsonRoute)}
    chat, completions = found[_CHAT], found[_COMPLETIONS]
    return [
        *(found[path].at(path.removeprefix("/v1")) for path in (_CHAT, _MODELS)),
        JsonRoute(
            "/invocations",
            Invocations(chat, completions),
            "Answers a chat, or completes a prompt, whichever the body has.",
            methods=("POST",),
            body=chat.body,
            answer=chat.answer,
            stream=EVENT_STREAM,
        ),
    ]


class _BodyFields(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")


_KIND = msgspec.json.Decoder(_BodyFields)


class Invocations:
    """An ASGI application that hands a request to the one of two routes that its body is for."""

    def __init__(self, chat: JsonRoute, completions: JsonRoute) -> None:
        self._chat = chat
        self._completions = completions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        kind = decoded(_KIND, body)
        if not bytes(kind.messages) and not bytes(kind.prompt):
            raise RequestError("Send either messages or prompt.", param="messages")
        unread: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def again() -> Message:
            nonlocal unread
            message, unread = unread, None
            return await receive() if message is None else message

        route = self._chat if bytes(kind.messages) else self._completions
        await route.app(scope, again, send)
