"""Runs the requests of an input file: as many at once as there is room for, and those alone that have no result."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from tessera.errors import EngineDeadError
from tessera.server.batches.endpoints import EndpointResponse, Endpoints
from tessera.server.batches.input_file import InputFile
from tessera.server.batches.protocol import LineError, LineResponse, RequestLine, ResultLine
from tessera.server.store import new_id

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine
    from tessera.server.access import Counts

TRIES = 3
"""How often a request is tried whose answer is that the engine cannot answer it now."""
PAUSE_SECONDS = 1.0
"""Between the tries."""
POLL_SECONDS = 0.02
_UNAVAILABLE = 503


class Room(ABC):
    """Lets the requests of batches in while there is room for them."""

    @abstractmethod
    async def take(self, line: RequestLine, tenant: str) -> None:
        """Returns when this request may begin, which its caller then does at once, or when it need not wait because it
        will not be answered."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the engine has ended, and no other will begin."""


class EngineRoom(Room):
    """That of one engine, in turn for all who wait. counts: of the server that has it."""

    def __init__(self, engine: AsyncEngine, counts: Counts) -> None:
        self.engine = engine
        self.counts = counts
        self._turn = asyncio.Lock()

    async def take(self, line: RequestLine, tenant: str) -> None:
        async with self._turn:
            await asyncio.sleep(0)  # the request that was let in before now counts as generating
            while not self.is_free():  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(POLL_SECONDS)

    @abstractmethod
    def is_free(self) -> bool:
        """Whether one more request may begin."""

    @property
    def is_lost(self) -> bool:
        health = self.engine.health
        return not health.alive and not health.restarting and not health.asleep


class IdleRoom(EngineRoom):
    """The room that other requests leave: nothing waits in the engine, and at most half of its rows and of its KV cache
    are in use, by requests of any kind. Under --scheduling-policy priority it is all rows and all of the cache, because
    there the engine preempts a batch's requests for others.

    The engine reports its state after each step, and this process itself knows how many requests it has.
    """

    def __init__(self, engine: AsyncEngine, counts: Counts, stores: Callable[[], bool]) -> None:
        """stores: whether there is room for results."""
        super().__init__(engine, counts)
        self._share = 1.0 if engine.config.scheduler.policy == "priority" else 0.5
        self._rows = max(1.0, self._share * engine.info.max_num_seqs)
        self._stores = stores

    def is_free(self) -> bool:
        engine, stats = self.engine, self.engine.stats
        usable = engine.health.alive and not engine.health.stalled
        taken = max(self.counts.generating, stats.num_running)
        idle = stats.num_waiting == 0 and taken < self._rows and stats.kv_usage <= self._share
        return usable and idle and self._stores()


class WholeRoom(EngineRoom):
    """All that the engine has, for a batch that is alone: as many requests run as there are rows, and as many wait."""

    def is_free(self) -> bool:
        """Raises EngineDeadError."""
        if self.is_lost:
            raise EngineDeadError("The engine died; run the same command again to go on.")
        engine, rows = self.engine, self.engine.info.max_num_seqs
        waits = engine.stats.num_waiting >= rows
        return engine.health.alive and not waits and self.counts.generating < 2 * rows


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

    async def run(self, source: InputFile, tenant: str, traceparent: str = "") -> None:
        """Returns when each request has a result. traceparent: as of Endpoints.post(). Cancelling it ends those in
        flight, which then have none. Raises OSError, and what the room and `keep` raise."""
        try:
            async with asyncio.TaskGroup() as group:
                # Those of one model together, as another may have to be loaded in its place.
                for entry in sorted(source.entries, key=lambda entry: entry.model):
                    if entry.custom_id not in self._done:
                        line = await asyncio.to_thread(source.line, entry)
                        await self._room.take(line, tenant)
                        group.create_task(self._answer(line, tenant, traceparent))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _answer(self, line: RequestLine, tenant: str, traceparent: str) -> None:
        for number in itertools.count(1):
            answer = await self._endpoints.post(line.url, bytes(line.body), tenant, traceparent)
            # A request that comes while the engine ends, or restarts, is none that failed.
            if answer.status != _UNAVAILABLE or (number >= TRIES and not self._room.is_lost):
                break
            await asyncio.sleep(PAUSE_SECONDS)
            await self._room.take(line, tenant)
        await self._keep(_result_of(line, answer))


def _result_of(line: RequestLine, answer: EndpointResponse) -> ResultLine:
    response = LineResponse(answer.status, answer.request_id, msgspec.Raw(answer.body))
    return ResultLine(new_id("batch_req"), line.custom_id, response)


def unanswered(custom_id: str, code: str, message: str) -> ResultLine:
    """The result of a request that was not run."""
    return ResultLine(new_id("batch_req"), custom_id, None, LineError(code, message))
