"""Chat completions that are kept because their request said so (`store`), and the routes that give them again."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tessera.errors import NotFoundError
from tessera.parsing.response import Event, Message
from tessera.request import CompletionOutput
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder
from tessera.server.generation.items import Item
from tessera.server.generation.run import ChatRun
from tessera.server.http import json_response, read_body
from tessera.server.openai.chat import PREFIX, ChatCompletionAnswer
from tessera.server.openai.protocol import ChatChoice, ChatCompletion, ChatCompletionRequest, ChatLogprobs
from tessera.server.openapi import JsonRoute, MethodRoutes
from tessera.server.paging import Deleted, ItemList, PageQuery, page_of
from tessera.server.security import tenant_of
from tessera.server.store import Store, check_metadata

_METADATA = re.compile(r"metadata\[(?P<name>.+)\]")


class MetadataRequest(msgspec.Struct):
    """metadata: in place of what it was."""

    metadata: dict[str, str] | None = None


class StoredChats:
    """The stored chats of one server."""

    def __init__(self, context: ServerContext, store: Store) -> None:
        self._context = context
        self._store = store
        self._decoder = RequestDecoder(context, MetadataRequest, {}, {})

    def routes(self, answering: JsonRoute) -> list[JsonRoute]:
        """answering: the route that answers chats, whose path is also that of their list."""
        one = f"{answering.path}/{{id}}"
        return [
            MethodRoutes(
                answering,
                JsonRoute(answering.path, self.list, "The chat completions that are kept.", answer=ItemList),
            ),
            MethodRoutes(
                JsonRoute(one, self.retrieve, "A chat completion that is kept.", answer=ChatCompletion),
                JsonRoute(
                    one,
                    self.update,
                    "Changes its metadata.",
                    methods=("POST",),
                    body=MetadataRequest,
                    answer=ChatCompletion,
                ),
                JsonRoute(one, self.delete, "Drops it.", methods=("DELETE",), answer=Deleted),
            ),
            JsonRoute(f"{one}/messages", self.messages, "The messages that it answers.", answer=ItemList),
        ]

    def answer(self, request: ChatCompletionRequest, run: ChatRun, scope: Scope) -> StoredAnswer:
        """The answer to a chat that is to be stored. Raises RequestError."""
        check_metadata(request.metadata)
        return StoredAnswer(self._context, request, run, self._store, tenant_of(scope))

    async def list(self, request: Request) -> Response:
        query = request.query_params
        metadata = {found["name"]: text for name, text in query.items() if (found := _METADATA.fullmatch(name))}

        def wanted(stored: Mapping[str, Any]) -> bool:
            own = stored["completion"]
            return bool(
                query.get("model", own["model"]) == own["model"] and metadata.items() <= own["metadata"].items()
            )

        page = await self._store.page(
            "chat", tenant_of(request.scope), PageQuery.from_request(request, order="asc"), wanted
        )
        items = [kept["completion"] for kept in page.items]
        first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return json_response(ItemList(items, first, last, has_more=page.has_more))

    async def retrieve(self, request: Request) -> Response:
        return json_response((await self._stored(request))["completion"])

    async def update(self, request: Request) -> Response:
        if not request.path_params["id"].startswith(f"{PREFIX}-"):  # another server's route, more likely than an id
            raise HTTPException(404)
        asked = await self._decoder.decode(await read_body(request.receive))
        check_metadata(asked.metadata)

        def change(stored: dict[str, Any]) -> None:
            stored["completion"]["metadata"] = asked.metadata or {}

        kept = await self._store.change("chat", request.path_params["id"], tenant_of(request.scope), change)
        return json_response((await self._stored(request) if kept is None else kept)["completion"])

    async def delete(self, request: Request) -> Response:
        key = (await self._stored(request))["completion"]["id"]
        await self._store.delete("chat", key, tenant_of(request.scope))
        return json_response(Deleted(key, "chat.completion.deleted"))

    async def messages(self, request: Request) -> Response:
        return json_response(page_of((await self._stored(request))["messages"], request, order="asc"))

    async def _stored(self, request: Request) -> dict[str, Any]:
        """Raises NotFoundError."""
        key = request.path_params["id"][:256]
        kept: dict[str, Any] | None = await self._store.get("chat", key, tenant_of(request.scope))
        if kept is None:
            raise NotFoundError("The chat completion does not exist, or is no longer kept; send store=true to keep it.")
        return kept


class StoredAnswer(ChatCompletionAnswer):
    """An answer that is kept once it is whole."""

    def __init__(
        self, context: ServerContext, request: ChatCompletionRequest, run: ChatRun, store: Store, tenant: str
    ) -> None:
        super().__init__(request, run)
        self._store = store
        self._assembly = context.assembly
        self._tenant = tenant
        self._parts: list[_Parts] = [_Parts() for _ in range(run.generation.num_choices)]

    async def whole(self) -> list[bytes]:
        pieces = await super().whole()
        await self._keep(pieces)
        return pieces

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(super().events()) as events:
            async for data in events:
                yield data
        completion = self._completion([self._read(index, parts) for index, parts in enumerate(self._parts)])
        await self._keep(await self._assembly.encode(completion))

    def _pieces(self, answer: CompletionOutput, events: Sequence[Event]) -> Iterator[bytes]:
        parts = self._parts[answer.index]
        parts.events += events
        parts.last = answer
        if (new := self._logprobs_of(answer)) is not None:
            parts.logprobs += new.content
        return super()._pieces(answer, events)

    def _read(self, index: int, parts: _Parts) -> ChatChoice:
        choice = self._choice(index, parts.last, Message.from_events(parts.events))
        choice.token_ids = msgspec.UNSET
        choice.logprobs = ChatLogprobs(parts.logprobs) if self._request.logprobs else None
        return choice

    async def _keep(self, pieces: list[bytes]) -> None:
        """pieces: the JSON of the completion."""
        metadata = msgspec.json.encode(self._request.metadata or {})
        shown = b"".join((*pieces[:-1], b',"metadata":', metadata, pieces[-1]))
        kept = {"completion": msgspec.Raw(shown), "messages": _messages(self._request, self._run.identity.id)}
        await self._store.put("chat", self._run.identity.id, self._tenant, kept)


class _Parts:
    """What a stream has given of one choice. last: its newest output."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.logprobs: list[Any] = []
        self.last: CompletionOutput


def _messages(request: ChatCompletionRequest, completion_id: str) -> list[Item]:
    """The messages of a request as OpenAI lists them, with an id each."""
    found = []
    for index, message in enumerate(request.messages):
        item = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
        content = item.get("content")
        if isinstance(content, list):
            texts = [part.get("text") or part.get("refusal") or "" for part in content]
            item["content_parts"] = [{"type": "text", "text": text} for text in texts]
            item["content"] = "\n".join(texts)
        found.append({"refusal": None, **item, "content": item.get("content"), "id": f"{completion_id}-{index}"})
    return found
