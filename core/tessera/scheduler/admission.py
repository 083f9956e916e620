"""Decides when waiting requests start, and how many of their tokens are already in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array, int32
from tessera.kvcache.prefix_cache import PrefixHit
from tessera.scheduler.budget import ScheduledStep, TokenBudget
from tessera.scheduler.outputs import SchedulerCounters, StartedRequest
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.pooled_share import PooledShare
from tessera.scheduler.requests import Requests, RowAllocator
from tessera.scheduler.rows import NO_ROW, RowStatus, TrackedRequest, Work


@dataclass(frozen=True)
class _Origin:
    """What a request starts from: a prefix in the cache, or a sibling's prompt except for its last token. num_tokens:
    the tokens that it need not compute."""

    num_tokens: int
    hit: PrefixHit | None = None
    leader: TrackedRequest | None = None


class Admission:
    """Gives rows to waiting requests, in the policy's order.

    A request whose sibling is still computing the prompt they share becomes a follower: it holds a row, so no other
    request overtakes it, but no blocks until the prompt is in the cache. max_running: most requests with a row.
    watermark: fraction of the blocks to keep free when a request starts while others are running. clock: in seconds.
    """

    def __init__(
        self,
        requests: Requests,
        allocator: RowAllocator,
        budget: TokenBudget,
        policy: SchedulingPolicy,
        counters: SchedulerCounters,
        *,
        max_running: int,
        watermark: float,
        clock: Callable[[], float],
        pooled: PooledShare | None = None,
    ) -> None:
        self._requests, self._allocator, self._budget = requests, allocator, budget
        # Says whether requests that pool may start; None where none do beside others.
        self._pooled = pooled
        self._policy, self._counters = policy, counters
        self._max_running, self._clock = max_running, clock
        self._watermark = allocator.cache.share_of_blocks(watermark)
        self._followers: list[TrackedRequest] = []
        self._started: list[StartedRequest] = []

    def take_started(self) -> list[StartedRequest]:
        """Requests that started for the first time since the last call."""
        started, self._started = self._started, []
        return started

    # ---- waiting requests --------------------------------------------------------------------------------------------

    def start_waiting(self, step: ScheduledStep) -> None:
        """Starts waiting requests until the next one has to wait."""
        while len(self._requests.waiting) and step.room:
            request = self._next()
            if request is None or not self._may_start(request) or not self._start(step, request):
                return

    def why_not(self) -> tuple[TrackedRequest, str]:
        """The next request, which cannot start although no step is in flight, and the reason."""
        request, resources = self._next(), self._allocator.resources
        assert request is not None, "requests that pool wait for others that run"
        resources.begin_step()
        first = self._budget.chunk(0, request.num_tokens, self._budget.max_per_request)
        return request, resources.reason(request, first) or "the scheduling policy lets no request start"

    def _next(self) -> TrackedRequest | None:
        """None if all that wait are requests that pool, and none of them may start."""
        heads = self._requests.waiting.heads
        if self._pooled is not None and not self._pooled.admits:
            heads = [head for head in heads if not head.pools]
        return self._requests[self._policy.next(heads).key] if heads else None

    def _may_start(self, request: TrackedRequest) -> bool:
        """The checks that need no look-up of its prefix."""
        if request.row != NO_ROW or request.refused_at == self._cache_state:
            return False
        if self._allocator.num_placed >= self._max_running or not self._allocator.rows.num_free:
            return False
        return self._policy.may_start(request, self._allocator.num_placed)

    @property
    def _cache_state(self) -> tuple[int, int]:
        """While this does not change, a request that had too few blocks still has too few."""
        return self._allocator.cache.num_freed, len(self._allocator.rows.running)

    def _start(self, step: ScheduledStep, request: TrackedRequest) -> bool:
        """Starts a request. Returns False if it must wait, and with it all requests behind it."""
        resources, origin = self._allocator.resources, self._origin(request)
        if origin is None:
            if not resources.holds(request):
                return False
            self._place(request, 1)
            self._followers.append(request)
            return True
        if not self._has_blocks(request, origin):
            request.refused_at = self._cache_state
            return False
        start, left = origin.num_tokens, request.num_tokens - origin.num_tokens
        request.num_cached_tokens = start
        later = step.kind == "prefill" and left == 1  # it starts now, but decodes in the next step
        wanted = count = 1 if later else self._first_chunk(step, start, left)
        room = resources.room_to_start(request, wanted) if wanted else 0
        if room < wanted:
            count = self._budget.chunk(start, left, room)
        if not count:  # it also starts if all that it needs is something that this step does for it
            if not (wanted and resources.holds(request) and resources.prepare(request)):
                return False
            step.prepares = True
        self._place(request, max(count, 1))
        self._run(request, origin)
        if count and not later:
            work = Work(int32([request.row]), int32([start]), int32([left]))
            short = self._allocator.cache.try_allocate(work.rows, work.starts, work.starts + count)
            assert short is None, "the blocks counted for a request were not free"
            resources.take(request, count)
            step.add(work, int32([count]))
        return True

    def _has_blocks(self, request: TrackedRequest, origin: _Origin, returning: Array | int = 0) -> bool:
        """Whether there are free blocks for all its tokens. If others are running, one more block for each of them and
        the watermark must also be free, so that no request is preempted right away. returning: blocks to count as
        free."""
        cache, others = self._allocator.cache, len(self._allocator.rows.running)
        if origin.hit is None:
            needed = cache.blocks_to_fork()
        else:
            needed = cache.blocks_to_start(origin.hit, request.num_tokens, request.num_sources)
        return cache.has(needed, reserved=(self._watermark + others * cache.grows if others else 0) - returning)

    def _first_chunk(self, step: ScheduledStep, start: int, num_remaining: int) -> int:
        if num_remaining > 1 and (step.kind == "decode" or step.num_prefills >= self._budget.max_prefill_rows):
            return 0
        return self._budget.chunk(start, num_remaining, step.room)

    def _place(self, request: TrackedRequest, num_tokens: int) -> None:
        self._requests.waiting.remove(request)
        self._allocator.place(request, num_tokens)
        self._policy.placed(request)

    def _run(self, request: TrackedRequest, origin: _Origin) -> None:
        if origin.hit is not None:
            self._allocator.open(request, origin.hit)
        elif origin.leader is not None:
            self._allocator.fork(request, origin.leader)
        if request.started:
            return
        request.started = True
        self._started.append(StartedRequest(request.key, origin.num_tokens, self._clock()))
        counters = self._counters
        counters.requests += 1
        counters.prompt_tokens += request.num_prompt_tokens
        if origin.leader is not None:
            counters.forked_tokens += origin.num_tokens
        elif request.chain is not None and request.reads_cache:
            counters.prefix_queries_tokens += request.num_prompt_tokens
            counters.cached_prompt_tokens += origin.num_tokens

    # ---- what a request starts from ----------------------------------------------------------------------------------

    def wake_followers(self) -> None:
        """Starts followers whose prompt is in the cache, or whose sibling is gone."""
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

    def _origin(self, request: TrackedRequest) -> _Origin | None:
        """What a request starts from; None while a sibling is computing the prompt. All steps that compute the prompt,
        except for its last token, must have retired."""
        leader = self._leader(request)
        if leader is not None and self._allocator.cache.can_fork:
            shared = request.num_prompt_tokens - 1
            return _Origin(shared, leader=leader) if self._allocator.rows.num_retired[leader.row] >= shared else None
        chain = request.chain if request.reads_cache else None
        hit = self._allocator.cache.get_computed_blocks(chain, request.tokens, self._budget.chunk_multiple)
        if leader is not None and self._will_copy_states(request, leader, hit.num_tokens):
            return None
        return _Origin(hit.num_tokens, hit=hit)

    def _will_copy_states(self, request: TrackedRequest, leader: TrackedRequest, num_known: int) -> bool:
        """Whether a sibling is computing states that save enough of the prompt, beyond what is known of it."""
        if not request.reads_cache or self._allocator.rows.num_retired[leader.row] >= request.num_prompt_tokens:
            return False
        return self._budget.to_border(num_known, request.num_prompt_tokens - num_known) > 0

    def _leader(self, request: TrackedRequest) -> TrackedRequest | None:
        """The running sibling whose prompt a request that has not started can share, if any."""
        leader = self._requests.get(request.request.leader)
        if leader is None or leader.row == NO_ROW or request.started:
            return None
        if self._allocator.rows.status[leader.row] != RowStatus.RUNNING:
            return None
        return leader if self._allocator.cache.windows.sees(leader.row, request.num_prompt_tokens - 1) else None

    # ---- preemption for a waiting request ----------------------------------------------------------------------------

    def make_way(self) -> None:
        """Preempts running requests if the next one has no room and the policy lets it take theirs."""
        if not self._policy.preemptive or not len(self._requests.waiting):
            return
        rows, newcomer = self._allocator.rows, self._next()
        if (
            newcomer is None
            or newcomer.row != NO_ROW
            or not self._policy.may_start(newcomer, self._allocator.num_placed)
        ):
            return
        while len(running := rows.running) and not self._has_room(newcomer):
            if self._allocator.closing and not self._allocator.resources.holds(newcomer):
                return  # rows are closing; whether their resources are enough is known once they are released
            victim = self._policy.victim([rows.request(row) for row in running.tolist()])
            if not self._policy.preempts(newcomer, victim):
                return
            self._requests.preempt(self._requests[victim.key])

    def _has_room(self, request: TrackedRequest) -> bool:
        """Whether there is a row, room in the resources, and enough blocks, counting those that steps in flight will
        free."""
        if self._allocator.num_placed >= self._max_running or not self._allocator.resources.holds(request):
            return False
        origin = self._origin(request)
        return origin is None or self._has_blocks(request, origin, self._allocator.cache.num_returning)

    def overtaken(self, work: Work) -> Array | None:
        """A mask of the partly computed prompts that the next request overtakes: they are scheduled after it. None if
        it overtakes none."""
        if not self._policy.preemptive or not len(self._requests.waiting):
            return None
        newcomer = self._next()
        if newcomer is None:
            return None
        late: Array = np.zeros(len(work.rows), dtype=bool)
        for place in np.flatnonzero(work.num_remaining > 1).tolist():
            late[place] = self._policy.preempts(newcomer, self._allocator.rows.request(int(work.rows[place])))
        return late if late.any() else None
