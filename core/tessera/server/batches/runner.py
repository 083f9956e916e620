"""Runs the requests of an input file: as many at once as there is room for, and those alone that have no result."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection

import msgspec

from tessera.errors import EngineDeadError
from tessera.server.batches.endpoints import EndpointResponse, Endpoints
from tessera.server.batches.input_file import InputFile
from tessera.server.batches.protocol import LineError, LineResponse, RequestLine, ResultLine
from tessera.server.context import ServerContext
from tessera.server.store import new_id

TRIES = 3
"""How often a request is tried whose answer is that the engine cannot answer it now."""
PAUSE_SECONDS = 1.0
"""Between the tries."""
POLL_SECONDS = 0.02
_UNAVAILABLE = 503


class Room(ABC):
    """Lets requests in, in turn for all who wait, while there is room for them."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Returns when one more request may begin, which its caller then does at once."""
        async with self._turn:
            await asyncio.sleep(0)  # the request that was let in before now counts as generating
            while not self.is_free():  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(POLL_SECONDS)

    @abstractmethod
    def is_free(self) -> bool:
        """Whether one more request may begin."""

    @property
    def is_lost(self) -> bool:
        """Whether the engine has ended, and no other will begin."""
        health = self.context.engine.health
        return not health.alive and not health.restarting and not health.asleep


class IdleRoom(Room):
    """The room that other requests leave: nothing waits in the engine, and at most half of its rows and of its KV cache
    are in use, by requests of any kind. Under --scheduling-policy priority it is all rows and all of the cache, because
    there the engine preempts a batch's requests for others. stores: whether there is room for results.

    The engine reports its state after each step, and this process itself knows how many requests it has.
    """

    def __init__(self, context: ServerContext, stores: Callable[[], bool]) -> None:
        super().__init__(context)
        self._share = 1.0 if context.engine.config.scheduler.policy == "priority" else 0.5
        self._rows = max(1.0, self._share * context.engine.info.max_num_seqs)
        self._stores = stores

    def is_free(self) -> bool:
        engine, stats = self.context.engine, self.context.engine.stats
        usable = engine.health.alive and not engine.health.stalled
        taken = max(self.context.counts.generating, stats.num_running)
        idle = stats.num_waiting == 0 and taken < self._rows and stats.kv_usage <= self._share
        return usable and idle and self._stores()


class WholeRoom(Room):
    """All that the engine has, for a batch that is alone: as many requests run as there are rows, and as many wait."""

    def is_free(self) -> bool:
        """Raises EngineDeadError."""
        if self.is_lost:
            raise EngineDeadError("The engine died; run the same command again to go on.")
        engine, rows = self.context.engine, self.context.engine.info.max_num_seqs
        waits = engine.stats.num_waiting >= rows
        return engine.health.alive and not waits and self.context.counts.generating < 2 * rows


class Runner:
    """Answers the requests of one batch. done: the custom_id of each that has a result. keep: stores a result."""

    def __init__(
        self,
        endpoints: Endpoints,
        room: Room,
        done: Collection[str],
        keep: Callable[[ResultLine], Awaitable[None]],
    ) -> None:
        self._endpoints = endpoints
        self._room = room
        self._done = done
        self._keep = keep

    async def run(self, source: InputFile, tenant: str) -> None:
        """Returns when each request has a result. Cancelling it ends those in flight, which then have none. Raises
        OSError, and what the room and `keep` raise."""
        try:
            async with asyncio.TaskGroup() as group:
                for entry in source.entries:
                    if entry.custom_id not in self._done:
                        line = await asyncio.to_thread(source.line, entry)
                        await self._room.take()
                        group.create_task(self._answer(line, tenant))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _answer(self, line: RequestLine, tenant: str) -> None:
        for number in itertools.count(1):
            answer = await self._endpoints.post(line.url, bytes(line.body), tenant)
            # A request that comes while the engine ends, or restarts, is none that failed.
            if answer.status != _UNAVAILABLE or (number >= TRIES and not self._room.is_lost):
                break
            await asyncio.sleep(PAUSE_SECONDS)
            await self._room.take()
        await self._keep(_result_of(line, answer))


def _result_of(line: RequestLine, answer: EndpointResponse) -> ResultLine:
    response = LineResponse(answer.status, answer.request_id, msgspec.Raw(answer.body))
    return ResultLine(new_id("batch_req"), line.custom_id, response)


def unanswered(custom_id: str, code: str, message: str) -> ResultLine:
    """The result of a request that was not run."""
    return ResultLine(new_id("batch_req"), custom_id, None, LineError(code, message))
