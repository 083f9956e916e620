"""Waiting requests start: when there is room, and from how many tokens that are in the cache already."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array, int32
from tessera.kvcache.manager import KVCacheManager
from tessera.kvcache.prefix_cache import PrefixHit
from tessera.scheduler.draft import ScheduledStep
from tessera.scheduler.in_flight import InFlight
from tessera.scheduler.occupancy import RowAllocator
from tessera.scheduler.outputs import SchedulerCounters, StartedRequest
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.requests import Requests
from tessera.scheduler.resources import ResourceList
from tessera.scheduler.rows import Rows, Status, Work
from tessera.scheduler.shares import TokenBudget
from tessera.scheduler.tracked import NO_ROW, TrackedRequest


@dataclass(frozen=True)
class _Origin:
    """Where a request starts from: a prefix in the cache, or a sibling's prompt up to its last token."""

    num_tokens: int
    hit: PrefixHit | None = None
    leader: TrackedRequest | None = None


class Admission:
    """Gives places to waiting requests, and to followers: those that have a row and wait until a sibling has computed
    the prompt they share.

    A follower has its row from when it is its turn, so nobody overtakes it; it holds no blocks until it runs, and then
    it is a running request like any other. watermark: share of the blocks that stays free when somebody starts beside
    others.
    """

    def __init__(
        self,
        requests: Requests,
        rows: Rows,
        cache: KVCacheManager,
        occupancy: RowAllocator,
        resources: ResourceList,
        shares: TokenBudget,
        policy: SchedulingPolicy,
        in_flight: InFlight,
        counters: SchedulerCounters,
        *,
        max_placed: int,
        watermark: float,
    ) -> None:
        self._requests = requests
        self._rows = rows
        self._cache = cache
        self._occupancy = occupancy
        self._resources = resources
        self._shares = shares
        self._policy = policy
        self._in_flight = in_flight
        self._counters = counters
        self._max_placed = max_placed
        self._kept_free = cache.share_of_blocks(watermark)
        self._followers: list[TrackedRequest] = []
        self._started: list[StartedRequest] = []

    def take_started(self) -> list[StartedRequest]:
        """Requests that started for the first time since the last call."""
        started, self._started = self._started, []
        return started

    # ---- followers ---------------------------------------------------------------------------------------------------

    def wake_followers(self) -> None:
        """Followers whose prompt is there, or whose sibling is gone, run from now on."""
        still = []
        for request in self._followers:
            if request.key not in self._requests:
                continue
            origin = self._origin(request)
            if origin is None:
                still.append(request)
            else:
                self._run(request, origin)
        self._followers = still

    def _leader(self, request: TrackedRequest) -> TrackedRequest | None:
        """The running sibling that a request which never ran shares its prompt with."""
        leader = self._requests.get(request.request.leader)
        if leader is None or leader.row == NO_ROW or request.started or not self._cache.can_fork:
            return None
        if self._rows.status[leader.row] != Status.RUNNING:
            return None
        return leader if self._cache.windows.sees(leader.row, request.num_prompt_tokens - 1) else None

    def _origin(self, request: TrackedRequest) -> _Origin | None:
        """None where a sibling is still computing the prompt: all of it but the last token must be in the cache for
        sure."""
        leader = self._leader(request)
        if leader is None:
            chain = request.chain if request.reads_cache else None
            hit = self._cache.get_computed_blocks(chain, request.tokens, self._shares.chunk_multiple)
            return _Origin(hit.num_tokens, hit=hit)
        shared = request.num_prompt_tokens - 1
        return _Origin(shared, leader=leader) if self._rows.num_retired[leader.row] >= shared else None

    # ---- whoever has to give way -------------------------------------------------------------------------------------

    def make_way(self) -> None:
        """Where the next request has no room and its policy lets it take that of others, those are preempted."""
        if not self._policy.preemptive or not len(self._requests.waiting):
            return
        newcomer = self._next()
        if newcomer.row != NO_ROW or not self._policy.may_start(newcomer, self._occupancy.num_placed):
            return
        while len(running := self._rows.running) and not self._has_place(newcomer):
            if self._in_flight.closing and not self._resources.has_room(newcomer):
                return  # whether what others leave is enough is seen when they have left
            victim = self._policy.victim([self._rows.request(row) for row in running.tolist()])
            if not self._policy.preempts(newcomer, victim):
                return
            self._requests.preempt(self._requests[victim.key])

    def _has_place(self, request: TrackedRequest) -> bool:
        """Whether there is a row, room for what it holds, and blocks, those on their way back included."""
        if self._occupancy.num_placed >= self._max_placed or not self._resources.has_room(request):
            return False
        origin = self._origin(request)
        return origin is None or self._has_blocks(request, origin, self._cache.num_returning)

    def overtaken(self, work: Work) -> Array | None:
        """Which of these prompts in the middle wait until the next request has started, as a mask; None where it has no
        such claim."""
        if not self._policy.preemptive or not len(self._requests.waiting):
            return None
        newcomer = self._next()
        prompts = np.flatnonzero(work.left > 1).tolist()
        late: Array = np.zeros(len(work.rows), dtype=bool)
        for place in prompts:
            late[place] = self._policy.preempts(newcomer, self._rows.request(int(work.rows[place])))
        return late if late.any() else None

    # ---- waiting requests --------------------------------------------------------------------------------------------

    def _next(self) -> TrackedRequest:
        return self._requests[self._policy.next(self._requests.waiting.heads).key]

    def start_waiting(self, draft: ScheduledStep) -> None:
        """As many as there is room for, in the policy's order."""
        while len(self._requests.waiting) and draft.room:
            request = self._next()
            if not self._may_ask(request) or not self._start(draft, request):
                return

    def why_not(self) -> tuple[TrackedRequest, str]:
        """The next request, which does not start though nothing is under way, and what keeps it from that."""
        request = self._next()
        self._resources.begin_step()
        said = self._resources.reason(
            request, self._shares.chunk(0, request.num_tokens, self._shares.max_tokens_per_request)
        )
        return request, said or "the scheduling policy lets nobody start"

    def _may_ask(self, request: TrackedRequest) -> bool:
        """What can be said without looking for its prefix."""
        if request.row != NO_ROW or request.refused_at == self._standing:
            return False
        if self._occupancy.num_placed >= self._max_placed or not self._rows.num_free:
            return False
        return self._policy.may_start(request, self._occupancy.num_placed)

    @property
    def _standing(self) -> tuple[int, int]:
        """As long as this stays the same there is not more room for blocks than before."""
        return self._cache.num_freed, len(self._rows.running)

    def _start(self, draft: ScheduledStep, request: TrackedRequest) -> bool:
        """False where it must wait, and all behind it."""
        origin = self._origin(request)
        if origin is None:
            if not self._resources.room_to_start(request, 1):
                return False
            self._place(request, 1)
            self._followers.append(request)
            return True
        if not self._has_blocks(request, origin):
            request.refused_at = self._standing
            return False
        left = request.num_tokens - origin.num_tokens
        later = draft.kind == "prefill" and left == 1
        count = 1 if later else self._grant(draft, origin.num_tokens, left)
        room = self._resources.room_to_start(request, count) if count else 0
        if room < count:
            count = self._shares.chunk(origin.num_tokens, left, room)
        if not count:
            return False
        self._place(request, count)
        self._run(request, origin)
        if not later:
            self._give(draft, request, origin.num_tokens, count, left)
        return True

    def _has_blocks(self, request: TrackedRequest, origin: _Origin, returning: Array | int = 0) -> bool:
        """Room for all its tokens and, beside others, for a block more of each of them and the share that is kept free,
        so that nobody is preempted at once."""
        if origin.hit is None:
            needed = self._cache.blocks_to_fork()
        else:
            needed = self._cache.blocks_to_start(origin.hit, request.num_tokens)
        others = len(self._rows.running)
        return self._cache.has(needed, beside=(self._kept_free + others if others else 0) - returning)

    def _grant(self, draft: ScheduledStep, start: int, left: int) -> int:
        """Tokens that the step has for it."""
        if left > 1 and (draft.kind == "decode" or draft.num_prefills >= self._shares.max_prefill_rows):
            return 0
        return self._shares.chunk(start, left, draft.room)

    def _place(self, request: TrackedRequest, count: int) -> None:
        self._requests.waiting.remove(request)
        self._occupancy.place(request, count)
        self._policy.placed(request)

    def _run(self, request: TrackedRequest, origin: _Origin) -> None:
        if origin.hit is not None:
            self._occupancy.open(request, origin.hit)
        elif origin.leader is not None:
            self._occupancy.fork(request, origin.leader)
        if not request.started:
            request.started = True
            self._started.append(StartedRequest(request.key, origin.num_tokens, time.monotonic()))
            self._count(request, origin)

    def _count(self, request: TrackedRequest, origin: _Origin) -> None:
        counters = self._counters
        counters.requests += 1
        counters.prompt_tokens += request.num_prompt_tokens
        if origin.leader is not None:
            counters.forked_tokens += origin.num_tokens
        elif request.chain is not None and request.reads_cache:
            counters.prefix_queries_tokens += request.num_prompt_tokens
            counters.cached_prompt_tokens += origin.num_tokens

    def _give(self, draft: ScheduledStep, request: TrackedRequest, start: int, count: int, left: int) -> None:
        work, tokens = Work(int32([request.row]), int32([start]), int32([left])), int32([count])
        demand = self._cache.demand(work.rows, work.starts, work.starts + tokens)
        if demand is not None:
            self._cache.allocate_slots(demand)
        self._resources.take(request, count)
        draft.grant(work, tokens)
