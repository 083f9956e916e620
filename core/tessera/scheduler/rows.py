"""Requests that have a row: their state in arrays, so that a step over many rows touches no object of any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from tessera.arrays import Array
from tessera.kvcache.prefix_cache import HashChain
from tessera.request import Request
from tessera.scheduler.features import NOTHING, RequestFeatures
from tessera.scheduler.outputs import FinishReason

NO_ROW = -1
NO_STEP = -1


class Status(IntEnum):
    """Of a row. RESERVED: its request waits for a sibling's prompt. PREEMPTED and ENDED: steps in flight still use the
    row; it closes after them."""

    FREE = 0
    RESERVED = 1
    RUNNING = 2
    PREEMPTED = 3
    ENDED = 4


class TrackedRequest:
    """A request from add() to its end; the RequestView that policies and resources see.

    order: its place in the order of arrival. rank, queue: what the policy said. row: NO_ROW while it waits. tokens: its
    prompt and answer as of when it last had no row; newer tokens are in the row. started: it had a row before.
    refused_at: the state of the cache when there last were too few blocks for it. features: what they hold for it.
    """

    __slots__ = (
        *("_rows", "chain", "features", "order", "queue", "rank", "refused_at", "request", "row", "started", "tokens"),
    )

    def __init__(
        self, request: Request, order: int, chain: HashChain | None, rows: Rows, features: RequestFeatures = NOTHING
    ) -> None:
        self.request = request
        self.features = features
        self.order = order
        self.rank = 0.0
        self.queue = ""
        self.chain = chain
        self.row = NO_ROW
        self.tokens: Array = request.prompt
        self.refused_at: tuple[int, int] | None = None
        self.started = False
        self._rows = rows

    @property
    def key(self) -> int:
        return self.request.key

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens to compute, before the prefix cache is asked. A sibling of another request has one of its
        own."""
        return self.num_prompt_tokens if self.request.leader < 0 else 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) if self.row == NO_ROW else int(self._rows.num_tokens[self.row])

    @property
    def num_computed_tokens(self) -> int:
        return 0 if self.row == NO_ROW else int(self._rows.num_computed_tokens[self.row])

    @property
    def reads_cache(self) -> bool:
        """Whether it may start from a cached prefix: not while it wants log probabilities of its prompt."""
        return self.request.params.prompt_logprobs is None or len(self.tokens) > self.num_prompt_tokens

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def arrival(self) -> float:
        return self.request.arrival

    @property
    def adapter(self) -> str:
        return self.request.adapter

    @property
    def tenant(self) -> str:
        return self.request.tenant


@dataclass(frozen=True)
class Work:
    """Rows with tokens to compute, in the policy's order. rows (intp); starts: the first position to compute; left: how
    many tokens each has to compute (both int32)."""

    rows: Array
    starts: Array
    left: Array

    @cached_property
    def decodes(self) -> bool:
        """Whether every row has one token left."""
        return bool(self.left.max(initial=0) <= 1)

    def where(self, mask: Array) -> Work:
        return self if mask.all() else Work(self.rows[mask], self.starts[mask], self.left[mask])

    def at(self, place: int) -> tuple[int, int, int]:
        return int(self.rows[place]), int(self.starts[place]), int(self.left[place])

    def one(self, place: int) -> Work:
        only = slice(place, place + 1)
        return Work(self.rows[only], self.starts[only], self.left[only])


class Rows:
    """Arrays over rows; a row has the same number in the runner's state.

    int32: num_prompt_tokens; num_tokens: prompt and answer as far as known here; num_computed_tokens: in the cache once
    the steps in flight are done; num_retired: in the cache already; pending: tokens that steps in flight sample;
    min_total: no stop token counts before this many tokens; max_total: the request ends with this many; num_cached:
    known to the prefix cache.
    int64: key; order (of arrival); sampled_step: the step that drew its newest token. float64: rank, the policy's.
    tokens [rows, max_model_len] int32: what is known; memory is touched only as far as rows get.
    num_naming: rows whose request has stop tokens of its own; num_masked: whose tokens a feature restricts. departures:
    how many requests ended or left their row.
    """

    def __init__(self, num_rows: int, max_model_len: int) -> None:
        self.num_rows = num_rows
        self.tokens = np.zeros((num_rows, max_model_len), dtype=np.int32)
        self.status = np.zeros(num_rows, dtype=np.int8)
        self._left = np.zeros((4, num_rows), dtype=np.int32)  # what work() needs, so that it indexes once
        self.num_tokens, self.pending, self.num_computed_tokens, self.max_total = self._left
        self.num_prompt_tokens, self.num_retired, self.min_total, self.num_cached = np.zeros((4, num_rows), np.int32)
        self.ignores_eos, self.has_stop_ids, self.masked = np.zeros((3, num_rows), dtype=bool)
        self.key, self.order = np.zeros((2, num_rows), dtype=np.int64)
        self.rank = np.zeros(num_rows, dtype=np.float64)
        self.sampled_step = np.full(num_rows, NO_STEP, dtype=np.int64)
        self.num_naming = self.num_masked = self.departures = 0
        self.requests: list[TrackedRequest | None] = [None] * num_rows
        self._free = list(range(num_rows - 1, -1, -1))
        self._running: Array | None = None

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> list[int]:
        return [row for row, request in enumerate(self.requests) if request is not None]

    def request(self, row: int) -> TrackedRequest:
        request = self.requests[row]
        assert request is not None
        return request

    # ---- one row -----------------------------------------------------------------------------------------------------

    def take(self, request: TrackedRequest) -> None:
        """Reserves a free row for a request."""
        row = request.row = self._free.pop()
        self.requests[row] = request
        self.set_status(row, Status.RESERVED)
        self.key[row], self.order[row], self.rank[row] = request.key, request.order, request.rank
        self.num_prompt_tokens[row], self.num_tokens[row] = request.num_prompt_tokens, len(request.tokens)

    def open(self, row: int, num_computed_tokens: int, max_total: int) -> None:
        """The row's request runs from now on; the cache holds num_computed_tokens of its tokens."""
        request = self.request(row)
        params = request.request.params
        self.tokens[row, : len(request.tokens)] = request.tokens
        self.num_computed_tokens[row] = self.num_retired[row] = num_computed_tokens
        self.min_total[row], self.max_total[row] = request.num_prompt_tokens + params.min_tokens, max_total
        self.ignores_eos[row], self.has_stop_ids[row] = params.ignore_eos, bool(params.stop_token_ids)
        self.num_naming += bool(params.stop_token_ids)
        self.masked[row] = request.features.masks
        self.num_masked += request.features.masks
        self.set_status(row, Status.RUNNING)

    def set_status(self, row: int, status: Status) -> None:
        self.departures += status in (Status.ENDED, Status.FREE)
        self.status[row] = status
        self._running = None

    def close(self, row: int) -> None:
        """Frees a row. A preempted request takes its tokens with it."""
        request = self.request(row)
        if self.status[row] == Status.PREEMPTED:
            request.tokens = self.tokens[row, : self.num_tokens[row]].copy()
        request.row = NO_ROW
        self.requests[row] = None
        for counts in self._counts:
            counts[row] = 0
        self.num_naming -= bool(self.has_stop_ids[row])
        self.num_masked -= bool(self.masked[row])
        self.has_stop_ids[row] = self.masked[row] = False
        self.sampled_step[row] = NO_STEP
        self.set_status(row, Status.FREE)
        self._free.append(row)

    def goes_on(self, row: int) -> bool:
        """Whether the row's request has not ended."""
        return self.status[row] in (Status.RUNNING, Status.PREEMPTED)

    @property
    def _counts(self) -> tuple[Array, ...]:
        """What is 0 in a free row."""
        known = self.num_prompt_tokens, self.num_tokens, self.pending
        return *known, self.num_computed_tokens, self.num_retired, self.num_cached

    # ---- many rows at once -------------------------------------------------------------------------------------------

    @property
    def running(self) -> Array:
        """Rows that run, in order of rank and arrival (intp, which indexes fastest)."""
        if self._running is None:
            rows = np.flatnonzero(self.status == Status.RUNNING)
            self._running = rows[np.lexsort((self.order[rows], self.rank[rows]))]
        return self._running

    def work(self) -> Work:
        """Tokens that running rows have to compute, the ones that steps in flight draw included. A request's last token
        is never computed, so a row whose last token is being drawn has nothing left."""
        rows = self.running
        num_tokens, pending, starts, max_total = self._left.take(rows, axis=1)
        left = np.minimum(num_tokens + pending, max_total - 1) - starts
        work = Work(rows, starts, left)
        return work if left.min(initial=1) > 0 else work.where(left > 0)

    def advance(self, rows: Array, ends: Array, sampling: Array, step: int) -> None:
        """A step computes the tokens of rows up to ends; those that sample draw one more."""
        self.num_computed_tokens[rows] = ends
        self.pending[sampling] += 1
        self.sampled_step[sampling] = step

    def going_on(self, rows: Array) -> Array:
        """Which of the rows have a request that has not ended, as a mask."""
        status = self.status[rows]
        going: Array = (status == Status.RUNNING) | (status == Status.PREEMPTED)
        return going

    def append(self, rows: Array, tokens: Array) -> None:
        """One more known token for each of the rows."""
        at = self.num_tokens[rows]
        self.tokens[rows, at] = tokens
        self.num_tokens[rows] = at + 1

    def check_idle(self) -> None:
        """Asserts that nothing is left when no request is."""
        assert not self.used, "a row is in use"
        assert sorted(self._free) == list(range(self.num_rows)), "a row is lost, or free twice"
        assert not self.status.any(), "a free row has a status"
        assert not self.num_naming, "a free row has stop tokens"
        assert not self.num_masked, "a free row is masked"
        for counts in self._counts:
            assert not counts.any(), "a free row has tokens"
        assert (self.sampled_step == NO_STEP).all(), "a free row remembers a step"


@dataclass(frozen=True)
class Ending:
    """Why a request's newest token is its last. stop_token: one of its own stop_token_ids. complete: a feature allows
    no token after it."""

    request: TrackedRequest
    reason: FinishReason
    stop_token: int | None = None
    complete: bool = False


class StopRules:
    """The model's end-of-text tokens, a request's own stop tokens and its length, for all rows of a step at once."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos = frozenset(eos_token_ids)

    def endings(self, rows: Rows, drawn: Array, tokens: Array) -> list[Ending]:
        """Which of the rows end with the token that each just got."""
        ending = rows.num_tokens.take(drawn) >= rows.max_total.take(drawn)
        for token in self._eos:
            ending |= tokens == token
        if rows.num_naming:
            ending |= rows.has_stop_ids[drawn]
        if rows.num_masked:
            ending |= rows.masked[drawn]
        if not ending.any():
            return []
        places = np.flatnonzero(ending)
        newest = zip(drawn[places].tolist(), tokens[places].tolist(), strict=True)
        found = [self._ending(rows, row, token) for row, token in newest]
        return [end for end in found if end is not None]

    def _ending(self, rows: Rows, row: int, token: int) -> Ending | None:
        request, total = rows.request(row), rows.num_tokens[row]
        if total >= rows.min_total[row]:
            if token in self._eos and not rows.ignores_eos[row]:
                return Ending(request, "stop")
            if token in (request.request.params.stop_token_ids or ()):
                return Ending(request, "stop", token)
        if rows.masked[row] and request.features.complete:
            return Ending(request, "stop", complete=True)
        return Ending(request, "length") if total >= rows.max_total[row] else None
