"""A response as it is answered: whole, as a stream, or in the background, and then kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial

import msgspec

from tessera.errors import TesseraError
from tessera.parsing.response import Message
from tessera.request import CompletionOutput
from tessera.server.assembly import is_small
from tessera.server.context import ServerContext
from tessera.server.http import detail_of
from tessera.server.openai.chat_run import ChatRun
from tessera.server.openai.logprobs import LogprobWriter, TokenNames
from tessera.server.responses.events import EVENTS, EventWriter, ItemEvents
from tessera.server.responses.items import new_id, output_items
from tessera.server.responses.protocol import (
    ConversationRef,
    InputTokensDetails,
    Item,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponsesRequest,
    ResponseUsage,
)
from tessera.server.responses.store import Store
from tessera.server.responses.tools import Tools
from tessera.server.responses.turns import Turn


class ResponseAnswer:
    """One response, whole or as a stream."""

    wire = EVENTS

    def __init__(
        self,
        context: ServerContext,
        store: Store,
        asked: ResponsesRequest,
        turn: Turn,
        tools: Tools,
        run: ChatRun,
    ) -> None:
        self.stream = bool(asked.stream)
        self._tools = tools
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
            tools=tools.shown,
            tool_choice=asked.tool_choice or "auto",
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            text={"format": form or {"type": "text"}},
            reasoning={"effort": effort, "summary": summary},
            background=bool(asked.background),
            conversation=None if turn.conversation is None else ConversationRef(turn.conversation),
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            max_tool_calls=asked.max_tool_calls,
            metadata=asked.metadata or {},
            previous_response_id=turn.previous,
            store=self._keeps,
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_logprobs=asked.top_logprobs or 0,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            truncation=asked.truncation or "disabled",
            user=asked.user,
        )

    async def whole(self) -> Response:
        await self._finish(*await self._run.whole(self._assembled))
        return self.response

    def _assembled(self, answers: Sequence[tuple[CompletionOutput, Message]]) -> tuple[CompletionOutput, list[Item]]:
        ((answer, message),) = answers
        return answer, self._items(answer, message)

    def _items(self, answer: CompletionOutput, message: Message) -> list[Item]:
        items = [self._tools.said(item) for item in output_items(message, _status_of(answer))]
        if self._shows_logprobs:
            for item in items:
                if item["type"] == "message":
                    item["content"][0]["logprobs"] = msgspec.Raw(b"[%b]" % self._encoded(answer))
        return items

    async def _logprobs_of(self, answer: CompletionOutput) -> bytes:
        """The elements of a JSON array, made on another thread if they are many."""
        if not self._shows_logprobs:
            return b""
        if is_small([answer]):
            return self._encoded(answer)
        return await self._run.generation.assembly.run(partial(self._encoded, answer))

    def _encoded(self, answer: CompletionOutput) -> bytes:
        return msgspec.json.encode(self._logprobs.chat(answer).content)[1:-1]

    async def events(self) -> AsyncGenerator[bytes, None]:
        writer = EventWriter()
        items = ItemEvents(writer, self._tools)
        begun = False
        async for update in self._run.updates():
            data = []
            for answer, events in update:
                if not begun:
                    begun = True
                    data += [
                        writer.event(f"response.{kind}", response=self.response) for kind in ("created", "in_progress")
                    ]
                logprobs = await self._logprobs_of(answer)
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
        await self._keep()
        if self._turn.conversation is not None:
            added = [*self._turn.items, *output]
            await self._store.change(
                "conversation", self._turn.conversation, self._turn.tenant, lambda kept: kept["items"].extend(added)
            )

    async def _keep(self) -> None:
        if self._keeps:
            kept = {"response": self.response, "input": self._turn.items, "previous": self._turn.previous}
            await self._store.put("response", self.response.id, self._turn.tenant, kept)


class BackgroundAnswer(ResponseAnswer):
    """A response that goes on after it was answered: it is kept, and asked for again. running: the tasks of all such
    responses, by their ids."""

    def __init__(
        self,
        context: ServerContext,
        store: Store,
        asked: ResponsesRequest,
        turn: Turn,
        tools: Tools,
        run: ChatRun,
        running: dict[str, asyncio.Task[None]],
    ) -> None:
        super().__init__(context, store, asked, turn, tools, run)
        self._running = running

    async def whole(self) -> Response:
        response = self.response
        response.status = "queued"
        await self._keep()
        task = self._running[response.id] = asyncio.create_task(self._go_on())
        task.add_done_callback(lambda _: self._running.pop(response.id, None))
        return response

    async def _go_on(self) -> None:
        try:
            await super().whole()
        except asyncio.CancelledError:
            await self._end("cancelled")
        except TesseraError as error:
            await self._end("failed", error)
        except Exception as error:
            await self._end("failed", error)
            raise

    async def _end(self, status: str, error: Exception | None = None) -> None:
        self.response.status = status
        if error is not None:
            detail = detail_of(error)
            self.response.error = ResponseError(detail.code or "server_error", detail.message)
        await self._keep()


def _status_of(answer: CompletionOutput) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"
