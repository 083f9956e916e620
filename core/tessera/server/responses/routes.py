"""The routes of the Responses API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.types import ASGIApp, Scope

from tessera.errors import NotFoundError, RequestError
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder, Values
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.run import ChatRun, count_tokens
from tessera.server.http import json_response, read_body, unless_gone
from tessera.server.openapi import EVENT_STREAM, JsonRoute, MethodRoutes
from tessera.server.paging import Deleted, ItemList, page_of
from tessera.server.responses.answers import BackgroundAnswer, ResponseAnswer
from tessera.server.responses.protocol import InputTokens, InputTokensRequest, Response, ResponsesRequest
from tessera.server.responses.replay import place_of, replay
from tessera.server.responses.tools import Tools
from tessera.server.responses.truncation import fitted
from tessera.server.responses.turns import Turn, chat_of, whole_chat_of
from tessera.server.security import tenant_of
from tessera.server.store import Store

_NOT_SERVED: Mapping[str, Values] = {"prompt": ()}
_NOT_COUNTED: Mapping[str, Values] = {"personality": ()}


def routes(context: ServerContext, store: Store) -> list[JsonRoute]:
    one, served = "/v1/responses/{id}", Responses(context, store)
    context.closers.append(served.end)
    return [
        JsonRoute(
            "/v1/responses",
            GenerationEndpoint(served.read, context),
            "Responds to an input, whole, as a stream or in the background.",
            methods=("POST",),
            body=ResponsesRequest,
            answer=Response,
            stream=EVENT_STREAM,
        ),
        JsonRoute(
            "/v1/responses/input_tokens",
            served.count,
            "Counts the tokens of what a response would be made of.",
            methods=("POST",),
            body=InputTokensRequest,
            answer=InputTokens,
        ),
        MethodRoutes(
            JsonRoute(one, served.retrieve, "A response that is kept.", answer=Response, stream=EVENT_STREAM),
            JsonRoute(one, served.delete, "Drops a response that is kept.", methods=("DELETE",), answer=Deleted),
        ),
        JsonRoute(
            f"{one}/cancel", served.cancel, "Ends a response in the background.", methods=("POST",), answer=Response
        ),
        JsonRoute(f"{one}/input_items", served.items, "The input of a response that is kept.", answer=ItemList),
    ]


class Responses:
    """The responses of one server."""

    def __init__(self, context: ServerContext, store: Store) -> None:
        limits = context.settings.limits
        large = {"input": limits.body_bytes, "tools": limits.tools_bytes, "instructions": limits.body_bytes}
        self._context = context
        self._store = store
        self._decoder = RequestDecoder(context, ResponsesRequest, _NOT_SERVED, large)
        self._counting = RequestDecoder(context, InputTokensRequest, _NOT_COUNTED, large)
        self._running: dict[str, asyncio.Task[None]] = {}

    async def read(self, body: bytes, scope: Scope) -> ResponseAnswer:
        asked = await self._decoder.decode(body)
        if asked.background:
            _check_background(asked)
        turn, tools = await Turn.load(self._store, asked, scope), Tools.from_request(asked.tools)
        chat, items = whole_chat_of(asked, turn, tools), [*turn.before, *turn.items]
        chat = await fitted(self._context, asked, chat, items, scope, tools.names)
        run = await ChatRun.prepare(self._context, chat, scope, "resp", tools.names)
        if asked.background:
            return BackgroundAnswer(self._context, self._store, asked, turn, tools, run, self._running)
        return ResponseAnswer(self._context, self._store, asked, turn, tools, run)

    async def count(self, request: Request) -> HttpResponse:
        asked = await self._counting.decode(await read_body(request.receive))
        turn, tools = await Turn.load(self._store, asked, request.scope), Tools.from_request(asked.tools)
        chat = chat_of(asked, turn, tools)

        async def count() -> int:
            kept = await fitted(self._context, asked, chat, [*turn.before, *turn.items], request.scope, tools.names)
            return await count_tokens(self._context, kept, request.scope, tools.names)

        return json_response(InputTokens(await unless_gone(request.receive, count())))

    async def retrieve(self, request: Request) -> ASGIApp:
        response = (await self._stored(request))["response"]
        if request.query_params.get("stream") != "true":
            return json_response(response)
        after = place_of(response, request.query_params.get("starting_after"))

        async def ended() -> dict[str, Any]:
            if task := self._running.get(response["id"]):
                await asyncio.wait((task,))
            found: dict[str, Any] = (await self._stored(request))["response"]
            return found

        return replay(response, ended, after)

    async def delete(self, request: Request) -> HttpResponse:
        key = (await self._stored(request))["response"]["id"]
        await self._cancel(key)
        await self._store.delete("response", key, tenant_of(request.scope))
        return json_response(Deleted(key, "response"))

    async def cancel(self, request: Request) -> HttpResponse:
        response = (await self._stored(request))["response"]
        if not response["background"]:
            raise RequestError("Only a response in the background can be cancelled.", param="id")
        await self._cancel(response["id"])
        return json_response((await self._stored(request))["response"])

    async def items(self, request: Request) -> HttpResponse:
        return json_response(page_of((await self._stored(request))["input"], request))

    async def end(self) -> None:
        """Ends the responses in the background."""
        for key in list(self._running):
            await self._cancel(key)

    async def _stored(self, request: Request) -> dict[str, Any]:
        key, tenant = request.path_params["id"], tenant_of(request.scope)
        found: dict[str, Any] | None = await self._store.get("response", key, tenant)
        if found is None:
            raise NotFoundError("The response does not exist, or is no longer kept.")
        return found

    async def _cancel(self, key: str) -> None:
        if task := self._running.get(key):
            task.cancel()
            await asyncio.wait((task,))


def _check_background(request: ResponsesRequest) -> None:
    """Raises RequestError."""
    if request.stream:
        raise RequestError("A response in the background is not streamed; leave out stream.", param="stream")
    if request.store is False:
        raise RequestError("A response in the background must be kept; leave out store.", param="store")
