"""Requests move into rows and out of them: with a row come blocks and other resources, and all are kept until no step
in flight uses them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tessera.kvcache.manager import KVCacheManager
from tessera.kvcache.prefix_cache import PrefixHit
from tessera.scheduler.in_flight import InFlight, StepInFlight
from tessera.scheduler.known import PrefixPublisher
from tessera.scheduler.resources import ResourceList
from tessera.scheduler.rows import Rows, Status
from tessera.scheduler.tracked import TrackedRequest
from tessera.step import RowOpened


class RowAllocator:
    """place(), then open() or fork(), then leave(); and what the runner has to hear of it with the next step.
    num_placed: requests that have a row and have not left it."""

    def __init__(
        self,
        rows: Rows,
        cache: KVCacheManager,
        known: PrefixPublisher,
        resources: ResourceList,
        in_flight: InFlight,
        max_model_len: int,
    ) -> None:
        self.num_placed = 0
        self._rows = rows
        self._cache = cache
        self._known = known
        self._resources = resources
        self._in_flight = in_flight
        self._max_model_len = max_model_len
        self._opened: dict[int, RowOpened] = {}
        self._freed: list[int] = []
        self._told = [False] * rows.num_rows

    def place(self, request: TrackedRequest, grant: int) -> None:
        """A row and what is held for a request's whole time."""
        self._resources.start(request, grant)
        self._rows.take(request)
        self.num_placed += 1

    def open(self, request: TrackedRequest, hit: PrefixHit) -> None:
        """It runs from now on, with a prefix that the cache knows."""
        self._cache.open(request.row, hit)
        if request.chain is not None:
            self._rows.num_cached[request.row] = hit.num_tokens
        self._run(request, hit.num_tokens)

    def fork(self, request: TrackedRequest, leader: TrackedRequest) -> None:
        """It runs from now on, with a sibling's prompt up to its last token."""
        shared = request.num_prompt_tokens - 1
        self._cache.fork(leader.row, request.row, shared)
        if request.chain is not None and leader.chain is not None:
            request.chain = leader.chain.fork(shared)
            self._rows.num_cached[request.row] = shared - shared % request.chain.unit
        self._run(request, shared)

    def _run(self, request: TrackedRequest, num_computed_tokens: int) -> None:
        told, row = request.request, request.row
        self._rows.open(row, num_computed_tokens, min(request.num_prompt_tokens + told.max_tokens, self._max_model_len))
        self._opened[row] = RowOpened(
            row=row,
            request_id=told.request_id,
            tokens=request.tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=num_computed_tokens,
            params=told.params,
            seed=told.seed,
            adapter=told.adapter,
            columns=told.columns,
        )

    def leave(self, request: TrackedRequest, status: Literal[Status.PREEMPTED, Status.ENDED]) -> None:
        """The request's row closes as soon as no step in flight uses it."""
        row = request.row
        self.num_placed -= 1
        self._rows.set_status(row, status)
        self._cache.leave(row)
        if not self._in_flight.close_after_last_use(row):
            self._close(row)

    def retire(self, step: StepInFlight) -> None:
        """Gives back what this step was the last to use."""
        self._cache.free_copied(step.copies)
        for row in step.closing:
            self._close(row)

    def _close(self, row: int) -> None:
        self._resources.release(self._rows.request(row))
        self._known.tell(np.array([row]))
        self._cache.free(row)
        self._rows.close(row)
        self._cache.tables.withdraw(row)
        self._opened.pop(row, None)
        if self._told[row]:
            self._freed.append(row)
            self._told[row] = False

    def take_changes(self) -> tuple[list[RowOpened], list[int]]:
        """Rows opened and rows closed since the last call."""
        opened, freed = list(self._opened.values()), self._freed
        for row in self._opened:
            self._told[row] = True
        self._opened, self._freed = {}, []
        return opened, freed

    def check(self) -> None:
        """Asserts that blocks are held by the rows in use and by the steps in flight."""
        rows = self._rows
        leaving = [row for row in rows.used if rows.status[row] in (Status.PREEMPTED, Status.ENDED)]
        assert sorted(leaving) == sorted(self._in_flight.closing), (
            "a row was left and does not close, or closes and was not left"
        )
        assert len(rows.used) - len(leaving) == self.num_placed, "requests in rows are not as many as were placed"
        self._cache.check(rows.used, leaving, self._in_flight.copies)
