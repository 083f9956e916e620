"""The routes of conversations: items that responses follow and add to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tessera.errors import NotFoundError, RequestError
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder
from tessera.server.generation.items import Item, input_items
from tessera.server.http import json_response, read_body
from tessera.server.openapi import JsonRoute, MethodRoutes
from tessera.server.paging import Deleted, ItemList, page_of
from tessera.server.responses.protocol import Conversation, ConversationRequest
from tessera.server.responses.turns import conversation_of
from tessera.server.security import tenant_of
from tessera.server.store import Store, check_metadata, new_id

MAX_NEW_ITEMS = 20


def routes(context: ServerContext, store: Store) -> list[JsonRoute]:
    served = Conversations(context, store)
    every, one = "/v1/conversations", "/v1/conversations/{id}"
    items, item = f"{one}/items", f"{one}/items/{{item}}"
    posting: dict[str, Any] = {"methods": ("POST",), "body": ConversationRequest}
    return [
        JsonRoute(every, served.create, "Begins a conversation.", answer=Conversation, **posting),
        MethodRoutes(
            JsonRoute(one, served.retrieve, "A conversation.", answer=Conversation),
            JsonRoute(one, served.update, "Changes a conversation's metadata.", answer=Conversation, **posting),
            JsonRoute(one, served.delete, "Drops a conversation.", methods=("DELETE",), answer=Deleted),
        ),
        MethodRoutes(
            JsonRoute(items, served.items, "The items of a conversation.", answer=ItemList),
            JsonRoute(items, served.add, "Adds items to a conversation.", answer=ItemList, **posting),
        ),
        MethodRoutes(
            JsonRoute(item, served.retrieve_item, "An item of a conversation."),
            JsonRoute(
                item, served.delete_item, "Drops an item of a conversation.", methods=("DELETE",), answer=Conversation
            ),
        ),
    ]


class Conversations:
    """The conversations of one server."""

    def __init__(self, context: ServerContext, store: Store) -> None:
        limits = context.settings.limits
        self._store = store
        self._decoder = RequestDecoder(context, ConversationRequest, {}, {"items": limits.body_bytes})

    async def create(self, request: Request) -> Response:
        asked = await self._decoded(request)
        metadata = {} if isinstance(asked.metadata, UnsetType) else asked.metadata or {}
        made = Conversation(new_id("conv"), int(time.time()), metadata)
        kept = {**msgspec.to_builtins(made), "items": input_items(asked.items, "items")}
        await self._store.put("conversation", made.id, tenant_of(request.scope), kept)
        return json_response(made)

    async def retrieve(self, request: Request) -> Response:
        return json_response(_public(await self._stored(request)))

    async def update(self, request: Request) -> Response:
        asked = await self._decoded(request)
        changes = {} if isinstance(asked.metadata, UnsetType) else {"metadata": asked.metadata or {}}
        return json_response(_public(await self._changed(request, lambda conversation: conversation.update(changes))))

    async def delete(self, request: Request) -> Response:
        key = (await self._stored(request))["id"]
        await self._store.delete("conversation", key, tenant_of(request.scope))
        return json_response(Deleted(key, "conversation.deleted"))

    async def items(self, request: Request) -> Response:
        return json_response(page_of((await self._stored(request))["items"], request))

    async def add(self, request: Request) -> Response:
        new = input_items((await self._decoded(request)).items, "items")
        if not new:
            raise RequestError("items is missing.", param="items")
        await self._changed(request, lambda conversation: conversation["items"].extend(new))
        return json_response(ItemList(new, new[0]["id"], new[-1]["id"], has_more=False))

    async def retrieve_item(self, request: Request) -> Response:
        return json_response(_item(await self._stored(request), request))

    async def delete_item(self, request: Request) -> Response:
        left = await self._changed(
            request, lambda conversation: conversation["items"].remove(_item(conversation, request))
        )
        return json_response(_public(left))

    async def _decoded(self, request: Request) -> ConversationRequest:
        """Raises RequestError."""
        asked = await self._decoder.decode(await read_body(request.receive) or b"{}")
        if asked.metadata is not None and not isinstance(asked.metadata, UnsetType):
            check_metadata(asked.metadata)
        if asked.items is not None and len(asked.items) > MAX_NEW_ITEMS:
            raise RequestError(f"items must have at most {MAX_NEW_ITEMS} items at once.", param="items")
        return asked

    async def _stored(self, request: Request) -> dict[str, Any]:
        """Raises NotFoundError."""
        return await conversation_of(self._store, request.path_params["id"], tenant_of(request.scope))

    async def _changed(self, request: Request, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """The conversation after a change. Raises NotFoundError, and what `change` raises."""
        key, tenant = request.path_params["id"], tenant_of(request.scope)
        changed: dict[str, Any] | None = await self._store.change("conversation", key, tenant, change)
        return await self._stored(request) if changed is None else changed


def _item(conversation: dict[str, Any], request: Request) -> Item:
    """Raises NotFoundError."""
    wanted = request.path_params["item"]
    item: Item | None = next((item for item in conversation["items"] if item["id"] == wanted), None)
    if item is None:
        raise NotFoundError("The conversation has no such item.")
    return item


def _public(conversation: dict[str, Any]) -> Conversation:
    return Conversation(conversation["id"], conversation["created_at"], conversation["metadata"])
