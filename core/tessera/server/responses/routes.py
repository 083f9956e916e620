"""The routes of the Responses API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.types import ASGIApp, Scope

from tessera.errors import NotFoundError, RequestError, TesseraError
from tessera.parsing.response import Message
from tessera.request import CompletionOutput
from tessera.server.context import ServerContext
from tessera.server.http import ErrorBody, body_of, json_response, read_body
from tessera.server.openai.chat_run import ChatRun, count_tokens
from tessera.server.openai.decode import RequestDecoder, Values
from tessera.server.openai.generation import GenerationEndpoint
from tessera.server.openai.logprobs import LogprobWriter, TokenNames
from tessera.server.openapi import JsonRoute, MethodRoutes
from tessera.server.responses.events import EVENTS, EventWriter, ItemEvents
from tessera.server.responses.items import new_id, output_items
from tessera.server.responses.paging import page_of
from tessera.server.responses.protocol import (
    ConversationRef,
    Deleted,
    InputTokens,
    InputTokensDetails,
    InputTokensRequest,
    Item,
    ItemList,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponsesRequest,
    ResponseUsage,
)
from tessera.server.responses.store import Store
from tessera.server.responses.turns import NAMES, Turn, chat_of, whole_chat_of
from tessera.server.security import tenant_of

_NOT_SERVED: Mapping[str, Values] = {"max_tool_calls": (), "prompt": ()}
_error = msgspec.json.Decoder(ErrorBody)


def routes(context: ServerContext, store: Store) -> list[JsonRoute]:
    one, served = "/v1/responses/{id}", Responses(context, store)
    context.closers.append(served.end)
    answering = GenerationEndpoint(served.read, context.counts)

    async def create(_request: Request) -> ASGIApp:
        return answering

    return [
        JsonRoute(
            "/v1/responses",
            create,
            "Responds to an input, whole, as a stream or in the background.",
            methods=("POST",),
            body=ResponsesRequest,
            answer=Response,
            events=True,
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
            JsonRoute(one, served.retrieve, "A response that is kept.", answer=Response),
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
        self._decoder = RequestDecoder(ResponsesRequest, _NOT_SERVED, large, limits.other_bytes)
        self._counting = RequestDecoder(InputTokensRequest, {}, large, limits.other_bytes)
        self._running: dict[str, asyncio.Task[None]] = {}

    async def read(self, body: bytes, scope: Scope) -> ResponseAnswer | BackgroundAnswer:
        asked = self._decoder.decode(body)
        turn = await Turn.of(self._store, asked, scope)
        run = await ChatRun.begin(self._context, whole_chat_of(self._context, asked, turn), scope, "resp", NAMES)
        answer = ResponseAnswer(self._context, self._store, asked, turn, run)
        return BackgroundAnswer(answer, self._running) if asked.background else answer

    async def count(self, request: Request) -> HttpResponse:
        asked = self._counting.decode(await read_body(request.receive))
        chat = chat_of(self._context, asked, await Turn.of(self._store, asked, request.scope))
        return json_response(InputTokens(await count_tokens(self._context, chat, NAMES)))

    async def retrieve(self, request: Request) -> HttpResponse:
        if request.query_params.get("stream") == "true":
            raise RequestError("A response that is kept is not streamed; leave out stream.", param="stream")
        return json_response((await self._kept(request))["response"])

    async def delete(self, request: Request) -> HttpResponse:
        key = (await self._kept(request))["response"]["id"]
        await self._cancel(key)
        await self._store.delete("response", key, tenant_of(request.scope))
        return json_response(Deleted(key, "response"))

    async def cancel(self, request: Request) -> HttpResponse:
        response = (await self._kept(request))["response"]
        if not response["background"]:
            raise RequestError("Only a response in the background can be cancelled.", param="id")
        await self._cancel(response["id"])
        return json_response((await self._kept(request))["response"])

    async def items(self, request: Request) -> HttpResponse:
        return json_response(page_of((await self._kept(request))["input"], request))

    async def end(self) -> None:
        """Ends the responses in the background."""
        for key in list(self._running):
            await self._cancel(key)

    async def _kept(self, request: Request) -> dict[str, Any]:
        key, tenant = request.path_params["id"], tenant_of(request.scope)
        found: dict[str, Any] | None = await self._store.get("response", key, tenant)
        if found is None:
            raise NotFoundError("The response does not exist, or is no longer kept.")
        return found

    async def _cancel(self, key: str) -> None:
        if task := self._running.get(key):
            task.cancel()
            await asyncio.wait((task,))


class ResponseAnswer:
    """One response, whole or as a stream."""

    wire = EVENTS

    def __init__(self, context: ServerContext, store: Store, asked: ResponsesRequest, turn: Turn, run: ChatRun) -> None:
        self.stream = bool(asked.stream)
        self._store = store
        self._turn = turn
        self._run = run
        self._keeps = asked.store is not False
        self._shows_logprobs = bool(asked.top_logprobs) or "message.output_text.logprobs" in (asked.include or ())
        self._logprobs = LogprobWriter(TokenNames(context.engine.tokenizer), asked.top_logprobs or 0)
        effort, summary = (None, None) if asked.reasoning is None else (asked.reasoning.effort, asked.reasoning.summary)
        form = None if asked.text is None else asked.text.format
        self.response = Response(
            id=new_id("resp"),
            created_at=run.identity.created,
            model=run.identity.model,
            status="in_progress",
            output=[],
            tools=asked.tools or [],
            tool_choice=asked.tool_choice or "auto",
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            text={"format": form or {"type": "text"}},
            reasoning={"effort": effort, "summary": summary},
            background=bool(asked.background),
            conversation=None if turn.conversation is None else ConversationRef(turn.conversation),
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            previous_response_id=turn.previous,
            store=self._keeps,
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_logprobs=asked.top_logprobs or 0,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            user=asked.user,
        )

    async def whole(self) -> Response:
        ((answer, message),) = await self._run.whole()
        await self._finish(answer, list(self._items(answer, message)))
        return self.response

    def _items(self, answer: CompletionOutput, message: Message) -> list[Item]:
        items = output_items(message, _status_of(answer))
        if self._shows_logprobs:
            for item in items:
                if item["type"] == "message":
                    item["content"][0]["logprobs"] = self._logprobs_of(answer)
        return items

    def _logprobs_of(self, answer: CompletionOutput) -> list[Any]:
        return list(msgspec.to_builtins(self._logprobs.chat(answer).content)) if self._shows_logprobs else []

    async def events(self) -> AsyncGenerator[bytes, None]:
        writer = EventWriter()
        items = ItemEvents(writer)
        begun = False
        async for update in self._run.updates():
            data = []
            for answer, events in update:
                if not begun:
                    begun = True
                    data += [
                        writer.event(f"response.{kind}", response=self.response) for kind in ("created", "in_progress")
                    ]
                logprobs = self._logprobs_of(answer)
                data += [written for event in events for written in items.of(event, logprobs)]
                if answer.finished:
                    data += items.end(_status_of(answer))
                    await self._finish(answer, items.output)
                    data.append(writer.event(f"response.{self.response.status}", response=self.response))
            if data:
                yield b"".join(data)

    async def _finish(self, answer: CompletionOutput, output: list[Item]) -> None:
        response, usage = self.response, self._run.generation.usage()
        response.output, response.status, response.completed_at = output, _status_of(answer), int(time.time())
        if response.status == "incomplete":
            response.incomplete_details = {"reason": "max_output_tokens"}
        reasoning = 0 if isinstance(usage.completion_tokens_details, msgspec.UnsetType) else (
            usage.completion_tokens_details.reasoning_tokens
        )  # fmt: skip
        response.usage = ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(reasoning),
            usage.total_tokens,
        )
        await self.keep()
        if self._turn.conversation is not None:
            added = [*self._turn.items, *output]
            await self._store.extend(self._turn.conversation, self._turn.tenant, added)

    async def keep(self) -> None:
        if self._keeps:
            kept = {"response": self.response, "input": self._turn.items, "previous": self._turn.previous}
            await self._store.put("response", self.response.id, self._turn.tenant, kept)

    async def fail(self, status: str, error: Exception | None) -> None:
        self.response.status = status
        if error is not None:
            detail = _error.decode(body_of(error)).error
            self.response.error = ResponseError(detail.code or "server_error", detail.message)
        await self.keep()


class BackgroundAnswer:
    """A response that goes on after it was answered: it is kept, and asked for again."""

    stream = False
    wire = EVENTS

    def __init__(self, answer: ResponseAnswer, running: dict[str, asyncio.Task[None]]) -> None:
        """Raises RequestError."""
        if answer.stream:
            raise RequestError("A response in the background is not streamed; leave out stream.", param="stream")
        if not answer.response.store:
            raise RequestError("A response in the background must be kept; leave out store.", param="store")
        self._answer = answer
        self._running = running

    async def whole(self) -> Response:
        response = self._answer.response
        response.status = "queued"
        await self._answer.keep()
        task = self._running[response.id] = asyncio.create_task(self._go_on())
        task.add_done_callback(lambda _: self._running.pop(response.id, None))
        return response

    async def _go_on(self) -> None:
        try:
            await self._answer.whole()
        except asyncio.CancelledError:
            await self._answer.fail("cancelled", None)
        except TesseraError as error:
            await self._answer.fail("failed", error)
        except Exception as error:
            await self._answer.fail("failed", error)
            raise

    def events(self) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError("it is never a stream")


def _status_of(answer: CompletionOutput) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"
