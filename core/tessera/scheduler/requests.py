"""Requests and what they hold: they wait in queues, take a row with blocks and resources, give it up, and end. A row
that steps in flight still use closes when the last of them retires."""

from __future__ import annotations

import logging
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tessera.arrays import Array
from tessera.config.engine import SchedulerConfig
from tessera.errors import OverloadedError, RequestError
from tessera.kvcache.manager import KVCacheManager
from tessera.kvcache.prefix_cache import PrefixHit
from tessera.log import about
from tessera.request import Request
from tessera.scheduler.budget import Resources
from tessera.scheduler.features import EngineFeatures
from tessera.scheduler.outputs import FinishedRequest, FinishReason, SchedulerCounters
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.rows import NO_ROW, Rows, Status, TrackedRequest
from tessera.step import BlockCopy, RowOpened

log = logging.getLogger(__name__)

Left = Literal[Status.PREEMPTED, Status.ENDED]


@dataclass(frozen=True)
class StepInFlight:
    """What update() needs to know of a scheduled step. rows, ends: what it computes; sampling: rows that draw a token;
    prompts: rows with more than one token. departures: of the rows, when it was scheduled. closing: rows that were left
    while this was the newest step to use them."""

    number: int
    rows: Array
    ends: Array
    sampling: Array
    prompts: Array
    departures: int
    copies: Sequence[BlockCopy]
    scheduled_at: float
    num_tokens: int
    closing: list[int] = field(default_factory=list)


class RowAllocator:
    """Rows, and the blocks and resources that go with them: place() reserves a row, open() or fork() starts it, leave()
    gives it up. in_flight: scheduled steps whose output has not come, oldest first. num_placed: requests that have a
    row and have not left it."""

    def __init__(self, rows: Rows, cache: KVCacheManager, resources: Resources, max_model_len: int) -> None:
        self.rows, self.cache, self.resources = rows, cache, resources
        self.in_flight: deque[StepInFlight] = deque()
        self.num_placed = 0
        self._max_model_len = max_model_len
        self._opened: dict[int, RowOpened] = {}
        self._freed: list[int] = []
        self._told = [False] * rows.num_rows

    # ---- a request takes a row ---------------------------------------------------------------------------------------

    def place(self, request: TrackedRequest, num_tokens: int) -> None:
        """Reserves a row, and what resources hold for the request as long as it runs."""
        self.resources.start(request, num_tokens)
        self.rows.take(request)
        self.num_placed += 1

    def open(self, request: TrackedRequest, hit: PrefixHit) -> None:
        """The request runs from now on, with a prefix that the cache has."""
        self.cache.open(request.row, hit)
        if request.chain is not None:
            self.rows.num_cached[request.row] = hit.num_tokens
        self._run(request, hit.num_tokens)

    def fork(self, request: TrackedRequest, leader: TrackedRequest) -> None:
        """The request runs from now on, with a sibling's prompt up to its last token."""
        shared = request.num_prompt_tokens - 1
        self.cache.fork(leader.row, request.row, shared)
        if request.chain is not None and leader.chain is not None:
            request.chain = leader.chain.fork(shared)
            self.rows.num_cached[request.row] = shared - shared % request.chain.unit
        self._run(request, shared)

    def _run(self, request: TrackedRequest, num_computed_tokens: int) -> None:
        own, row = request.request, request.row
        max_total = min(request.num_prompt_tokens + own.max_tokens, self._max_model_len)
        self.rows.open(row, num_computed_tokens, max_total)
        self._opened[row] = RowOpened(
            row=row,
            request_id=own.request_id,
            tokens=request.tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=num_computed_tokens,
            params=own.params,
            seed=own.seed,
            adapter=own.adapter,
            columns=own.columns,
        )

    # ---- a request gives its row up ----------------------------------------------------------------------------------

    @property
    def closing(self) -> list[int]:
        """Rows that were left and close once steps in flight retire."""
        return [row for step in self.in_flight for row in step.closing]

    def leave(self, request: TrackedRequest, status: Left) -> None:
        row = request.row
        self.num_placed -= 1
        self.rows.set_status(row, status)
        self.cache.leave(row)
        for step in reversed(self.in_flight):
            if (step.rows == row).any():
                step.closing.append(row)
                return
        self._close(row)

    def retire(self, number: int) -> StepInFlight:
        """The oldest step in flight: its output has come."""
        step = self.in_flight.popleft()
        assert step.number == number, f"got the output of step {number}, but {step.number} is the oldest in flight"
        return step

    def release(self, step: StepInFlight) -> None:
        """Frees what a retired step was the last to use."""
        self.cache.free_copied(step.copies)
        for row in step.closing:
            self._close(row)

    def _close(self, row: int) -> None:
        self.resources.release(self.rows.request(row))
        self.publish(np.array([row]))
        self.cache.free(row)
        self.rows.close(row)
        self.cache.tables.withdraw(row)
        self._opened.pop(row, None)
        if self._told[row]:
            self._freed.append(row)
            self._told[row] = False

    def take_changes(self) -> tuple[list[RowOpened], list[int]]:
        """Rows opened and rows freed since the last call."""
        opened, freed = list(self._opened.values()), self._freed
        for row in self._opened:
            self._told[row] = True
        self._opened, self._freed = {}, []
        return opened, freed

    # ---- what rows computed becomes known to the prefix cache --------------------------------------------------------

    def publish(self, rows: Array) -> None:
        """Full blocks of these rows that are computed for sure can be found by others. Prompts are published when their
        step retires, answers when their blocks are given up, so a step in which all rows decode hashes nothing."""
        if self.cache.prefix_cache is None or not len(rows):
            return
        state, unit = self.rows, self.cache.prefix_cache.unit
        for row in rows.tolist():
            first, last = int(state.num_cached[row]) // unit, int(state.num_retired[row]) // unit
            if first < last:
                chain = state.request(row).chain
                assert chain is not None
                state.num_cached[row] = last * unit
                self.cache.cache_blocks(row, chain, state.tokens[row], first, last)

    def free_behind_windows(self) -> None:
        """Frees blocks behind the windows of running rows, once they are published."""
        passed = self.cache.windows.behind(self.rows.running, self.rows.num_retired)
        if len(passed):
            self.publish(passed)
            self.cache.windows.free_behind(passed, self.rows.num_retired)

    def check(self) -> None:
        """Asserts that blocks are held by the rows in use and by the steps in flight, and by nothing else."""
        rows = self.rows
        leaving = [row for row in rows.used if rows.status[row] in (Status.PREEMPTED, Status.ENDED)]
        assert sorted(leaving) == sorted(self.closing), "a row was left and does not close, or closes and was not left"
        assert len(rows.used) - len(leaving) == self.num_placed, "requests in rows are not as many as were placed"
        self.cache.check(rows.used, leaving, [copy for step in self.in_flight for copy in step.copies])


class WaitingQueue:
    """Requests without a row, in queues by name, each in order of rank and arrival; a preempted request returns to its
    own. num_tokens: of all their prompts, one for each that shares another's."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._count = 0
        self._queues: dict[str, list[TrackedRequest]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def heads(self) -> list[TrackedRequest]:
        """The first of each queue, in order."""
        return sorted((queue[0] for queue in self._queues.values()), key=_order)

    def add(self, request: TrackedRequest) -> None:
        insort(self._queues.setdefault(request.queue, []), request, key=_order)
        self._count += 1
        self.num_tokens += request.num_queued_tokens

    def remove(self, request: TrackedRequest) -> None:
        queue = self._queues[request.queue]
        queue.remove(request)
        if not queue:
            del self._queues[request.queue]
        self._count -= 1
        self.num_tokens -= request.num_queued_tokens


def _order(request: TrackedRequest) -> tuple[float, int]:
    return request.rank, request.order


class Requests:
    """All requests that came and have not ended, by key. waiting: those without a row; a preempted one is among them
    from the start, though its row may not be closed yet. preparing: those that a feature does not let start yet, by
    key; no other request waits for them."""

    def __init__(
        self,
        config: SchedulerConfig,
        held: RowAllocator,
        policy: SchedulingPolicy,
        counters: SchedulerCounters,
        features: EngineFeatures,
    ) -> None:
        self.waiting = WaitingQueue()
        self.preparing: dict[int, TrackedRequest] = {}
        self._config, self._held, self._policy, self._counters = config, held, policy, counters
        self._features = features
        self._by_key: dict[int, TrackedRequest] = {}
        self._arrivals = 0
        self._finished: list[FinishedRequest] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: int) -> TrackedRequest | None:
        return self._by_key.get(key)

    def __getitem__(self, key: int) -> TrackedRequest:
        return self._by_key[key]

    def __contains__(self, key: int) -> bool:
        return key in self._by_key

    def add(self, request: Request, max_model_len: int) -> None:
        """Raises OverloadedError where too much is waiting, RequestError for a request that could never run."""
        self._check_fits(request, max_model_len)
        cache = self._held.cache.prefix_cache
        chain = None if cache is None else cache.chain(request.salt, request.adapter)
        tracked = TrackedRequest(request, self._arrivals, chain, self._held.rows)
        self._check_queue(tracked)
        tracked.features = self._features.begin(request)
        ready = tracked.features.ready()
        tracked.rank, tracked.queue = self._policy.rank(tracked), self._policy.queue(tracked)
        self._arrivals += 1
        self._by_key[request.key] = tracked
        if ready:
            self.waiting.add(tracked)
        else:
            self.preparing[request.key] = tracked

    def prepare(self) -> None:
        """Requests that features let start now wait with the others, in their order of arrival."""
        for request in list(self.preparing.values()):
            try:
                ready = request.features.ready()
            except RequestError as error:
                self.end(request, "error", message=error.message, param=error.param)
                continue
            if ready:
                del self.preparing[request.key]
                self.waiting.add(request)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.preparing)

    def _check_queue(self, request: TrackedRequest) -> None:
        waiting, most = self.num_waiting, self._config.max_num_queued_tokens
        if waiting >= self._config.max_waiting:
            raise OverloadedError(f"{waiting} requests are already waiting; try again later.")
        if most is None or not waiting:
            return
        tokens = self.waiting.num_tokens + sum(other.num_queued_tokens for other in self.preparing.values())
        if tokens + request.num_queued_tokens > most:
            raise OverloadedError(f"Prompts of {tokens} tokens are already waiting; try again later.")

    def _check_fits(self, request: Request, max_model_len: int) -> None:
        num_prompt = len(request.prompt)
        if not 0 < num_prompt < max_model_len:
            raise RequestError(
                f"The prompt must have 1 to {max_model_len - 1} tokens, got {num_prompt}.", param="prompt"
            )
        total = min(num_prompt + request.max_tokens, max_model_len)
        fits = self._held.cache.max_tokens + 1  # the last token is never computed
        if total > fits:
            raise RequestError(
                f"The prompt's {num_prompt} tokens and an answer of up to {total - num_prompt} are {total} tokens, "
                f"but the KV cache has room for requests of {fits}; shorten the prompt or lower max_tokens.",
                param="max_tokens" if num_prompt < fits else "prompt",
            )

    def preempt(self, request: TrackedRequest) -> None:
        """The request gives its row up and waits again. Its tokens, the ones in flight included, are kept and computed
        again later."""
        self._counters.preemptions += 1
        self._counters.recomputed_tokens += request.num_computed_tokens
        log.debug("preempted: %d tokens", request.num_tokens, extra=about(request.request.request_id))
        self._leave(request, Status.PREEMPTED)
        self.waiting.add(request)

    def abort(self, keys: Iterable[int]) -> None:
        """Ends requests at any moment; unknown keys are ignored."""
        for key in keys:
            if key in self._by_key:
                self.end(self._by_key[key], "abort")

    def end(self, request: TrackedRequest, reason: FinishReason, stop_token: int | None = None, **more: Any) -> None:
        """more: fields of FinishedRequest."""
        del self._by_key[request.key]
        self._finished.append(FinishedRequest(request.key, reason, stop_token, **more))
        rows = self._held.rows
        status = None if request.row == NO_ROW else rows.status[request.row]
        if self.preparing.pop(request.key, None) is not None:
            return
        if status is None:
            self.waiting.remove(request)
        elif status == Status.PREEMPTED:
            self.waiting.remove(request)
            rows.set_status(request.row, Status.ENDED)
        else:
            self._leave(request, Status.ENDED)

    def _leave(self, request: TrackedRequest, status: Left) -> None:
        self._policy.left(request)
        self._held.leave(request, status)

    def take_finished(self) -> list[FinishedRequest]:
        """Requests that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished
