"""The life of a request, apart from what it is granted: it comes, gives up its place, ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

from tessera.config.engine import SchedulerConfig
from tessera.errors import OverloadedError, RequestError
from tessera.kvcache.manager import KVCacheManager
from tessera.log import about
from tessera.request import Request
from tessera.scheduler.occupancy import RowAllocator
from tessera.scheduler.outputs import FinishedRequest, FinishReason, SchedulerCounters
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.rows import Rows, Status
from tessera.scheduler.tracked import NO_ROW, TrackedRequest
from tessera.scheduler.waiting import WaitingQueue

log = logging.getLogger(__name__)


class Requests:
    """All that came and did not end, by key. waiting: those of them without a place; who was preempted is among them,
    though its row may still close."""

    def __init__(
        self,
        config: SchedulerConfig,
        rows: Rows,
        cache: KVCacheManager,
        occupancy: RowAllocator,
        policy: SchedulingPolicy,
        counters: SchedulerCounters,
        max_model_len: int,
    ) -> None:
        self.waiting = WaitingQueue()
        self._config = config
        self._rows = rows
        self._cache = cache
        self._occupancy = occupancy
        self._policy = policy
        self._counters = counters
        self._max_model_len = max_model_len
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

    # ---- it comes ----------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Raises OverloadedError where too much waits already, RequestError for a request that could never run."""
        self._check_fits(request)
        cache = self._cache.prefix_cache
        chain = None if cache is None else cache.chain(request.salt, request.adapter)
        tracked = TrackedRequest(request, self._arrivals, chain, self._rows)
        self._check_queue(tracked)
        tracked.rank, tracked.queue = self._policy.rank(tracked), self._policy.queue(tracked)
        self._arrivals += 1
        self._by_key[request.key] = tracked
        self.waiting.add(tracked)

    def _check_queue(self, request: TrackedRequest) -> None:
        waiting, most = self.waiting, self._config.max_num_queued_tokens
        if len(waiting) >= self._config.max_waiting:
            raise OverloadedError(f"{len(waiting)} requests are waiting already; try again later.")
        if most is not None and len(waiting) and waiting.num_tokens + request.prompt_tokens > most:
            raise OverloadedError(f"Prompts of {waiting.num_tokens} tokens are waiting already; try again later.")

    def _check_fits(self, request: Request) -> None:
        num_prompt_tokens, most = len(request.prompt), self._max_model_len
        if not 0 < num_prompt_tokens < most:
            raise RequestError(f"The prompt must have 1 to {most - 1} tokens, got {num_prompt_tokens}.", param="prompt")
        total = min(num_prompt_tokens + request.max_tokens, most)
        fits = self._cache.max_tokens + 1  # the last token is never fed back
        if total > fits:
            raise RequestError(
                f"The prompt's {num_prompt_tokens} tokens and an answer of up to {total - num_prompt_tokens} are "
                f"{total} tokens, but the KV cache has room for requests of {fits}; shorten the prompt or lower "
                "max_tokens.",
                param="max_tokens" if num_prompt_tokens < fits else "prompt",
            )

    # ---- it gives up its place ---------------------------------------------------------------------------------------

    def preempt(self, request: TrackedRequest) -> None:
        """Its tokens, the ones in flight included, are kept and computed again later."""
        self._counters.preemptions += 1
        self._counters.recomputed_tokens += request.num_computed_tokens
        log.debug("preempted: %d tokens", request.num_tokens, extra=about(request.request.request_id))
        self._leave(request, Status.PREEMPTED)
        self.waiting.add(request)

    def _leave(self, request: TrackedRequest, status: Literal[Status.PREEMPTED, Status.ENDED]) -> None:
        self._policy.left(request)
        self._occupancy.leave(request, status)

    # ---- it ends -----------------------------------------------------------------------------------------------------

    def abort(self, keys: Iterable[int]) -> None:
        """At any moment; keys that are not known (any more) are ignored."""
        for key in keys:
            if key in self._by_key:
                self.end(self._by_key[key], "abort")

    def end(
        self, request: TrackedRequest, reason: FinishReason, stop_token: int | None = None, message: str | None = None
    ) -> None:
        del self._by_key[request.key]
        self._finished.append(FinishedRequest(request.key, reason, stop_token, message))
        status = None if request.row == NO_ROW else self._rows.status[request.row]
        if status is None:
            self.waiting.remove(request)
        elif status == Status.PREEMPTED:
            self.waiting.remove(request)
            self._rows.set_status(request.row, Status.ENDED)
        else:
            self._leave(request, Status.ENDED)

    def take_finished(self) -> list[FinishedRequest]:
        """Those that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished
