"""Tokens and blocks for the requests that run: a few operations on arrays where there is enough for all, one by one
where there is not."""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array, int32
from tessera.kvcache.manager import KVCacheManager
from tessera.scheduler.draft import ScheduledStep
from tessera.scheduler.in_flight import InFlight
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.requests import Requests
from tessera.scheduler.resources import ResourceList
from tessera.scheduler.rows import Rows, Status, Work
from tessera.scheduler.shares import TokenBudget
from tessera.scheduler.tracked import TrackedRequest


class Grants:
    """Gives rows that run what they compute next, preempting others where blocks are short."""

    def __init__(
        self,
        requests: Requests,
        rows: Rows,
        cache: KVCacheManager,
        resources: ResourceList,
        shares: TokenBudget,
        policy: SchedulingPolicy,
        in_flight: InFlight,
    ) -> None:
        self._requests = requests
        self._rows = rows
        self._cache = cache
        self._resources = resources
        self._shares = shares
        self._policy = policy
        self._in_flight = in_flight

    def give(self, draft: ScheduledStep, work: Work) -> None:
        """Tokens for rows that run. Where there are blocks for all, which is nearly always, that is a few operations on
        arrays."""
        tokens = self._shares.share(work, draft.room, draft.num_prefills)
        if tokens is not work.left:
            work, tokens = work.where(tokens > 0), tokens[tokens > 0]
        if self._resources.every_grant:
            self._one_by_one(draft, work, tokens)
            return
        demand = self._cache.demand(work.rows, work.starts, work.starts + tokens)
        if demand is None or self._cache.has(demand.blocks):
            if demand is not None:
                self._cache.allocate_slots(demand)
            draft.grant(work, tokens)
            return
        needy = self._cache.wanting(work.rows, work.starts + tokens)
        self._one_by_one(draft, work.where(needy), tokens[needy])
        kept = ~needy & (self._rows.status[work.rows] == Status.RUNNING)
        draft.grant(work.where(kept), tokens[kept])

    def _one_by_one(self, draft: ScheduledStep, work: Work, tokens: Array) -> None:
        """In order: each asks the resources, and takes blocks from others where it must."""
        for place, wanted in enumerate(tokens.tolist()):
            row, start, left = work.at(place)
            if self._rows.status[row] != Status.RUNNING:
                continue  # one before it took its blocks
            request = self._rows.request(row)
            count = self._resources.room(request, wanted)
            if count < wanted:
                count = self._shares.chunk(start, left, count)
            if count and self._secure(draft, request, start, start + count):
                self._resources.take(request, count)
                draft.grant(work.one(place), int32([count]))

    def _secure(self, draft: ScheduledStep, request: TrackedRequest, start: int, end: int) -> bool:
        """Blocks for a running request, preempting others until there are enough. False where it sits out this step:
        what it needs comes back with steps in flight (blocks, or a shared one for itself), or it was the victim."""
        row, cache = int32([request.row]), self._cache
        while (demand := cache.demand(row, int32([start]), int32([end]))) is not None:
            if cache.has(demand.blocks, beside=draft.promised):
                cache.allocate_slots(demand)
                return True
            draft.short = True
            if cache.has(demand.blocks, beside=draft.promised - cache.num_returning):
                draft.promised += demand.blocks
                return False
            running = self._rows.running
            open_to = running[~np.isin(running, draft.rows)].tolist()
            victim = self._policy.victim([self._rows.request(other) for other in open_to])
            if victim.key == request.key and self._in_flight.closing:
                return False
            self._requests.preempt(self._requests[victim.key])
            if victim.key == request.key:
                return False
        return True
