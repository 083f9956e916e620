"""Requests and what they hold: they wait in queues, get a row with blocks and resources, leave it, and end. If steps in
flight still use a row, it is closed when the last of them retires."""

from __future__ import annotations

import logging
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from tessera.arrays import Array
from tessera.config.engine import SchedulerConfig
from tessera.errors import QueuedTokensError, QueueFullError, RequestError
from tessera.kvcache.manager import KVCacheManager
from tessera.kvcache.prefix_cache import PrefixHit, SpanContent
from tessera.kvcache.snapshots import Snapshot
from tessera.log import about
from tessera.request import Request
from tessera.scheduler.budget import Resources
from tessera.scheduler.features import EngineFeatures
from tessera.scheduler.outputs import FinishedRequest, FinishReason, SchedulerCounters
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.restrictions import Restrictions
from tessera.scheduler.rows import NO_ROW, Rows, RowStatus, TrackedRequest
from tessera.step import BlockCopy, RowOpened

log = logging.getLogger(__name__)

LeavingStatus = Literal[RowStatus.PREEMPTED, RowStatus.ENDED]


@dataclass(frozen=True)
class StepInFlight:
    """What update() needs to know about a scheduled step."""

    number: int
    # [rows] intp: those that it computes tokens of.
    rows: Array
    # [rows] int32: the positions up to which it does, exclusive.
    ends: Array
    # Rows that sample a token.
    sampling: Array
    # Rows that had more than one token left.
    prompts: Array
    # Rows with drafts.
    drafted: Array
    # How many drafts each of these has.
    num_drafts: Array
    # Rows.departures when it was scheduled.
    departures: int
    copies: Sequence[BlockCopy]
    # Copies of rows' states, which are among `copies`.
    snapshots: Sequence[Snapshot]
    # Seconds on the scheduler's clock.
    scheduled_at: float
    # Of all rows, with drafts.
    num_tokens: int
    # Rows to close when it retires, since it is the newest step that uses them.
    closing: list[int] = field(default_factory=list)


class RowAllocator:
    """Assigns rows to requests, with their blocks and resources: place() reserves a row, open() or fork() starts it,
    leave() gives it up. in_flight: scheduled steps whose output has not arrived, oldest first. num_placed: requests
    that have a row and have not left it."""

    def __init__(self, rows: Rows, cache: KVCacheManager, resources: Resources, max_model_len: int) -> None:
        self.rows, self.cache, self.resources = rows, cache, resources
        self.in_flight: deque[StepInFlight] = deque()
        self.num_placed = 0
        self._max_model_len = max_model_len
        self._opened: dict[int, RowOpened] = {}
        self._freed: list[int] = []
        self._told = [False] * rows.num_rows

    # ---- taking a row ------------------------------------------------------------------------------------------------

    def place(self, request: TrackedRequest, num_tokens: int) -> None:
        """Reserves a row and takes the resources that the request holds while it runs."""
        self.resources.start(request, num_tokens)
        self.rows.take(request)
        self.num_placed += 1

    def open(self, request: TrackedRequest, hit: PrefixHit) -> None:
        """Starts a request in its row with a cached prefix."""
        self.cache.open(request.row, hit, request.num_sources)
        if request.chain is not None:
            self.rows.num_cached[request.row] = hit.num_tokens
        self._run(request, hit.num_tokens)

    def fork(self, request: TrackedRequest, leader: TrackedRequest) -> None:
        """Starts a request in its row with a sibling's prompt, except for its last token."""
        shared = request.num_prompt_tokens - 1
        self.cache.fork(leader.row, request.row, shared)
        if request.chain is not None and leader.chain is not None:
            request.chain = leader.chain.fork(shared)
            self.rows.num_cached[request.row] = shared - shared % request.chain.unit
        self._run(request, shared)

    def _run(self, request: TrackedRequest, num_computed_tokens: int) -> None:
        own, row = request.request, request.row
        max_total = min(request.num_prompt_tokens + own.max_tokens, self._max_model_len)
        if own.pooling is not None:
            max_total = request.num_prompt_tokens + 1  # the token after its prompt, which is never drawn
        self.rows.open(row, num_computed_tokens, max_total)
        self._opened[row] = RowOpened(
            row=row,
            request_id=own.request_id,
            tokens=request.tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=num_computed_tokens,
            params=own.params,
            seed=own.seed,
            feature_args=own.feature_args,
            columns=own.columns | request.features.columns(),
            cache_key=own.cache_key,
            pooling=own.pooling,
        )

    # ---- leaving a row -----------------------------------------------------------------------------------------------

    @property
    def closing(self) -> list[int]:
        """Rows whose request left them and that are closed once steps in flight retire."""
        return [row for step in self.in_flight for row in step.closing]

    def leave(self, request: TrackedRequest, status: LeavingStatus) -> None:
        """The request gives up its row, which is closed once no step in flight uses it."""
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
        """Removes and returns the oldest step in flight, whose output has arrived: its copies are made."""
        step = self.in_flight.popleft()
        assert step.number == number, f"got the output of step {number}, but {step.number} is the oldest in flight"
        self._settle(step.snapshots)
        self.cache.free_copied(step.copies)
        return step

    def release(self, step: StepInFlight) -> None:
        """Frees the rows that only a retired step still used."""
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

    # ---- prefix caching ----------------------------------------------------------------------------------------------

    def publish(self, rows: Array) -> None:
        """Adds the full blocks of these rows whose steps have retired to the prefix cache. Prompts are published when
        their step retires, and generated tokens only before their blocks are freed, so a step in which all rows decode
        hashes nothing."""
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

    def take_snapshots(self, rows: Array, starts: Array) -> list[Snapshot]:
        """Copies the states of rows that a step computes tokens of, from starts on, where they are worth it."""
        if self.cache.snapshots is None:
            return []
        return self.cache.snapshots.take(rows, starts, self.rows.num_prompt_tokens[rows])

    def _settle(self, snapshots: Sequence[Snapshot]) -> None:
        """A row whose request ended may have been computed further than its tokens go: these states are of no use."""
        for snapshot in snapshots:
            assert self.cache.snapshots is not None
            row, state = snapshot.row, self.rows
            chain = state.request(row).chain if snapshot.num_tokens <= state.num_retired[row] else None
            self.cache.snapshots.settle(snapshot, chain, state.tokens[row])

    def free_behind_windows(self) -> None:
        """Publishes and frees the blocks that fell behind the sliding windows of running rows."""
        passed = self.cache.windows.behind(self.rows.running, self.rows.num_retired)
        if len(passed):
            self.publish(passed)
            self.cache.windows.free_behind(passed, self.rows.num_retired)

    def check(self) -> None:
        """Asserts that the only holders of blocks are the rows in use and the copies of steps in flight."""
        rows = self.rows
        leaving = [row for row in rows.used if rows.status[row] in (RowStatus.PREEMPTED, RowStatus.ENDED)]
        assert sorted(leaving) == sorted(self.closing), "the rows that were left are not the rows that will be closed"
        assert len(rows.used) - len(leaving) == self.num_placed, "the number of requests in rows is not num_placed"
        copies = [copy for step in self.in_flight for copy in step.copies]
        snapshots = [snapshot for step in self.in_flight for snapshot in step.snapshots]
        self.cache.check(rows.used, leaving, copies, snapshots)


class WaitingQueue:
    """Requests without a row, in queues by name, those that pool apart, each in order of rank and arrival. A preempted
    request returns to its queue. num_tokens: prompt tokens of all of them; a request that shares its sibling's prompt
    counts as one."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._count = 0
        self._queues: dict[tuple[str, bool], list[TrackedRequest]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def heads(self) -> list[TrackedRequest]:
        """The first request of each queue, in order of rank and arrival."""
        return sorted((queue[0] for queue in self._queues.values()), key=_order)

    def add(self, request: TrackedRequest) -> None:
        insort(self._queues.setdefault((request.queue, request.pools), []), request, key=_order)
        self._count += 1
        self.num_tokens += request.num_queued_tokens

    def remove(self, request: TrackedRequest) -> None:
        name = request.queue, request.pools
        queue = self._queues[name]
        queue.remove(request)
        if not queue:
            del self._queues[name]
        self._count -= 1
        self.num_tokens -= request.num_queued_tokens


def _order(request: TrackedRequest) -> tuple[float, int]:
    return request.rank, request.order


def _whole_prompt(request: Request) -> SpanContent:
    """All that a prompt holds, so that only an equal one has the same prefixes."""
    digest = sha256(request.prompt.tobytes())
    for media in request.media:
        digest.update(media.start.to_bytes(8, "little") + media.digest)
    return SpanContent(0, int(request.prompt.size), digest.digest())


class Requests:
    """All requests that have not ended, by key. waiting: those without a row, including preempted ones whose row is not
    closed yet. preparing: those that a feature does not let start yet, by key; no other request waits for them."""

    def __init__(
        self,
        config: SchedulerConfig,
        allocator: RowAllocator,
        policy: SchedulingPolicy,
        counters: SchedulerCounters,
        features: EngineFeatures,
        eos_token_ids: Sequence[int],
        *,
        splits: bool = True,
    ) -> None:
        """splits: whether what is kept of a prompt's first tokens is the same whatever comes behind them."""
        self.waiting = WaitingQueue()
        self.preparing: dict[int, TrackedRequest] = {}
        self._config, self._allocator, self._policy, self._counters = config, allocator, policy, counters
        self._features, self._eos, self._splits = features, eos_token_ids, splits
        self._by_key: dict[int, TrackedRequest] = {}
        self._arrivals = 0
        self._finished: list[FinishedRequest] = []
        self._preempted: list[int] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: int) -> TrackedRequest | None:
        return self._by_key.get(key)

    def __getitem__(self, key: int) -> TrackedRequest:
        return self._by_key[key]

    def __contains__(self, key: int) -> bool:
        return key in self._by_key

    def add(self, request: Request, max_model_len: int) -> None:
        """Queues a request. Raises QueueFullError if the waiting queue is full, RequestError if the request can never
        run."""
        self._check_fits(request, max_model_len)
        cache = self._allocator.cache.prefix_cache
        contents = [SpanContent(media.start, media.end, media.digest) for media in request.media]
        if not self._splits:
            contents.insert(0, _whole_prompt(request))
        chain = None if cache is None else cache.chain(request.cache_key, contents, request.feature_args)
        tracked = TrackedRequest(request, self._arrivals, chain, self._allocator.rows)
        self._check_queue(tracked)
        tracked.features = self._features.begin(request)
        tracked.restrictions = Restrictions.from_params(request.params, self._eos)
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
            raise QueueFullError(f"{waiting} requests are already waiting; try again later.")
        if most is None or not waiting:
            return
        tokens = self.waiting.num_tokens + sum(other.num_queued_tokens for other in self.preparing.values())
        if tokens + request.num_queued_tokens > most:
            raise QueuedTokensError(f"{tokens} prompt tokens are already waiting; try again later.")

    def _check_fits(self, request: Request, max_model_len: int) -> None:
        num_prompt, answers = len(request.prompt), request.pooling is None
        most = max_model_len - answers
        if not 0 < num_prompt <= most:
            raise RequestError(f"The prompt must have 1 to {most} tokens, got {num_prompt}.", param="prompt")
        total = min(num_prompt + request.max_tokens, max_model_len) if answers else num_prompt
        fits = self._allocator.cache.max_tokens + answers  # the last token of an answer is never computed
        if total > fits:
            raise RequestError(
                f"The prompt's {num_prompt} tokens and a completion of up to {total - num_prompt} are {total} tokens, "
                f"but the KV cache has room for {fits} per request; shorten the prompt or lower max_tokens.",
                param="max_tokens" if num_prompt < fits else "prompt",
            )

    def preempt(self, request: TrackedRequest) -> None:
        """The request gives up its row and waits again. Its tokens, including those being sampled by steps in flight,
        are kept; their keys and values are recomputed later."""
        self._counters.preemptions += 1
        self._preempted.append(request.key)
        self._counters.recomputed_tokens += request.num_computed_tokens
        log.debug("preempted: %d tokens", request.num_tokens, extra=about(request.request.request_id))
        self._leave(request, RowStatus.PREEMPTED)
        self.waiting.add(request)

    def take_preempted(self) -> list[int]:
        """The keys of requests that were preempted since the last call, as often as each was."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def abort(self, keys: Iterable[int]) -> None:
        """Ends requests, whether they wait or run; unknown keys are ignored."""
        for key in keys:
            if key in self._by_key:
                self.end(self._by_key[key], "abort")

    def end(self, request: TrackedRequest, reason: FinishReason, stop_token: int | None = None, **fields: Any) -> None:
        """Ends a request. stop_token, fields: of FinishedRequest."""
        del self._by_key[request.key]
        rows = self._allocator.rows
        if reason in ("stop", "length"):
            told = request.features.finishing(request.row, int(rows.num_retired[request.row]))
            fields["kv_transfer_params"] = told
        request.features.ended()
        self._finished.append(FinishedRequest(request.key, reason, stop_token, **fields))
        status = None if request.row == NO_ROW else rows.status[request.row]
        if self.preparing.pop(request.key, None) is not None:
            return
        if status is None:
            self.waiting.remove(request)
        elif status == RowStatus.PREEMPTED:
            self.waiting.remove(request)
            rows.set_status(request.row, RowStatus.ENDED)
        else:
            self._leave(request, RowStatus.ENDED)

    def _leave(self, request: TrackedRequest, status: LeavingStatus) -> None:
        self._policy.removed(request)
        self._allocator.leave(request, status)

    def take_finished(self) -> list[FinishedRequest]:
        """The requests that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished
