"""A response as it is answered: whole, as a stream, or in the background, and then kept."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from tessera.errors import TesseraError
from tessera.parsing.response import Event
from tessera.request import CompletionOutput
from tessera.server.assembly import is_small
from tessera.server.context import ServerContext
from tessera.server.disk import DiskFullError
from tessera.server.generation.items import Item
from tessera.server.generation.logprobs import LogprobWriter, TokenNames
from tessera.server.generation.run import ChatRun
from tessera.server.generation.usage import ResponseUsage
from tessera.server.http import detail_of
from tessera.server.responses.events import EventWriter, ItemEvents, Unwritten, status_of, wire_of
from tessera.server.responses.logprobs import TextLogprobs
from tessera.server.responses.protocol import (
    ConversationRef,
    Response,
    ResponseError,
    ResponsesRequest,
)
from tessera.server.responses.tools import Tools
from tessera.server.responses.turns import Turn
from tessera.server.store import Store, new_id


class ResponseAnswer:
    """One response, whole or as a stream."""

    def __init__(
        self,
        context: ServerContext,
        store: Store,
        request: ResponsesRequest,
        turn: Turn,
        tools: Tools,
        run: ChatRun,
    ) -> None:
        self.stream = bool(request.stream)
        self._tools = tools
        self._store = store
        self._turn = turn
        self._run = run
        self._keeps = request.store is not False
        self._must_keep = bool(request.store or request.background or turn.conversation)
        self._logprobs = _logprobs(request, run)
        self._writer = EventWriter()
        self.wire = wire_of(self._writer, lambda: self.response)
        effort, summary = (
            (None, None) if request.reasoning is None else (request.reasoning.effort, request.reasoning.summary)
        )
        form = None if request.text is None else request.text.format
        self.response = Response(
            id=new_id("resp"),
            created_at=run.identity.created,
            model=run.identity.model,
            status="in_progress",
            output=[],
            tools=tools.request_tools,
            tool_choice=request.tool_choice or "auto",
            parallel_tool_calls=request.parallel_tool_calls is not False,
            text={"format": form or {"type": "text"}},
            reasoning={"effort": effort, "summary": summary},
            background=bool(request.background),
            conversation=None if turn.conversation is None else ConversationRef(turn.conversation),
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
            metadata=request.metadata or {},
            previous_response_id=turn.previous,
            store=self._keeps,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_logprobs=request.top_logprobs or 0,
            top_p=1.0 if request.top_p is None else request.top_p,
            truncation=request.truncation or "disabled",
            user=request.user,
        )

    async def whole(self) -> Response:
        """Made of the same items as the stream, whose events are not written."""
        items = self._items(Unwritten())

        def assembled(answers: Sequence[tuple[CompletionOutput, list[Event]]]) -> CompletionOutput:
            ((answer, events),) = answers
            deque(items.write(answer, events), maxlen=0)
            return answer

        await self._finish(await self._run.whole(assembled), items.output)
        return self.response

    def _items(self, writer: EventWriter) -> ItemEvents:
        return ItemEvents(writer, self._tools, self._logprobs)

    async def events(self) -> AsyncGenerator[bytes, None]:
        items = self._items(self._writer)
        begun = False
        try:
            async for _, output in self._run.generation.outputs():
                update = self._run.read(output)
                data = b""
                if not begun:
                    begun = True
                    data = self._told("created") + self._told("in_progress")
                data += await self._written(items, update)
                for answer, _ in update:
                    if answer.finished:
                        await self._finish(answer, items.output)
                        data += self._told(self.response.status)
                if data:
                    yield data
        except Exception as error:
            if begun:
                await self._fail(error)
            raise

    async def _written(self, items: ItemEvents, update: Sequence[tuple[CompletionOutput, list[Event]]]) -> bytes:
        """On another thread if there are many log probabilities."""

        def write() -> bytes:
            return b"".join(written for answer, events in update for written in items.write(answer, events))

        if self._logprobs is None or is_small([answer for answer, _ in update]):
            return write()
        return await self._run.generation.assembly.run(write)

    def _told(self, kind: str) -> bytes:
        return self._writer.event(f"response.{kind}", response=self.response)

    async def _finish(self, answer: CompletionOutput, output: list[Item]) -> None:
        response = self.response
        response.output, response.status, response.completed_at = output, status_of(answer), int(time.time())
        if response.status == "incomplete":
            response.incomplete_details = {"reason": "max_output_tokens"}
        response.usage = ResponseUsage.from_tokens(self._run.generation.usage())
        await self._keep()
        if self._turn.conversation is not None:
            added = [*self._turn.items, *output]
            await self._store.change(
                "conversation",
                self._turn.conversation,
                self._turn.tenant,
                lambda conversation: conversation["items"].extend(added),
            )

    async def _fail(self, error: Exception) -> None:
        detail = detail_of(error)
        self.response.status, self.response.error = (
            "failed",
            ResponseError(detail.code or "server_error", detail.message),
        )
        await self._keep()

    async def _keep(self) -> None:
        """Raises DiskFullError if the client asked for it to be kept. Others get the answer, which says that it is
        not."""
        if not self._keeps:
            return
        kept = {"response": self.response, "input": self._turn.items, "previous": self._turn.previous}
        try:
            await self._store.put("response", self.response.id, self._turn.tenant, kept)
        except DiskFullError:
            if self._must_keep:
                raise
            self._keeps = self.response.store = False


def _logprobs(request: ResponsesRequest, run: ChatRun) -> TextLogprobs | None:
    """None if they are not asked for."""
    if not request.top_logprobs and "message.output_text.logprobs" not in (request.include or ()):
        return None
    tokenizer, params = run.generation.model.engine.tokenizer, run.generation.params
    assert tokenizer is not None  # there is no chat without one
    skipped = tokenizer.skipped_ids(params.skip_special_tokens, params.kept_special_tokens)
    return TextLogprobs(LogprobWriter(TokenNames(tokenizer), request.top_logprobs or 0), skipped)


class BackgroundAnswer(ResponseAnswer):
    """A response that goes on after it was answered: it is kept, and asked for again. running: the tasks of all such
    responses, by their ids."""

    def __init__(
        self,
        context: ServerContext,
        store: Store,
        request: ResponsesRequest,
        turn: Turn,
        tools: Tools,
        run: ChatRun,
        running: dict[str, asyncio.Task[None]],
    ) -> None:
        super().__init__(context, store, request, turn, tools, run)
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
            self.response.status = "cancelled"
            await self._keep()
        except DiskFullError:
            pass  # the log says so, and the response stays as it was kept last
        except TesseraError as error:
            await self._fail(error)
        except Exception as error:
            await self._fail(error)
            raise
