"""The state of requests that have a row, in arrays, so that a step over many rows touches no object per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from tessera.arrays import Array
from tessera.kvcache.prefix_cache import HashChain
from tessera.media.placed import PlacedMedia
from tessera.request import Request
from tessera.scheduler.features import NOTHING, RequestFeatures
from tessera.scheduler.outputs import FinishReason
from tessera.scheduler.restrictions import Restrictions

NO_ROW = -1
NO_STEP = -1


class RowStatus(IntEnum):
    """The status of a row. RESERVED: its request waits for a sibling's prompt. PREEMPTED, ENDED: its request left it,
    and it is closed once no step in flight uses it."""

    FREE = 0
    RESERVED = 1
    RUNNING = 2
    PREEMPTED = 3
    ENDED = 4


class TrackedRequest:
    """A request from add() to its end; the RequestView that policies and resources see."""

    __slots__ = (
        *("_rows", "chain", "features", "order", "queue", "rank", "refused_at", "request", "restrictions", "row"),
        *("num_cached_tokens", "started", "tokens"),
    )

    def __init__(
        self, request: Request, order: int, chain: HashChain | None, rows: Rows, features: RequestFeatures = NOTHING
    ) -> None:
        self.request = request
        # What the enabled features hold for it.
        self.features = features
        # When its fields forbid the token that is drawn where none is allowed; None if they never do.
        self.restrictions: Restrictions | None = None
        # Counts up in order of arrival.
        self.order = order
        # From the policy.
        self.rank = 0.0
        # From the policy.
        self.queue = ""
        self.chain = chain
        # NO_ROW while it waits.
        self.row = NO_ROW
        # [tokens] int32: prompt and completion when it got its row; newer tokens are in the row.
        self.tokens: Array = request.prompt
        # Of a prefix hit, while it waits and may start with it.
        self.num_cached_tokens = 0
        # The state of the cache when there last were too few blocks for it.
        self.refused_at: tuple[int, int] | None = None
        # It has run before.
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
        """Prompt tokens to compute, not counting prefix hits: 1 for a request that shares its sibling's prompt."""
        return self.num_prompt_tokens if self.request.leader < 0 else 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) if self.row == NO_ROW else int(self._rows.num_tokens[self.row])

    @property
    def num_computed_tokens(self) -> int:
        return self.num_cached_tokens if self.row == NO_ROW else int(self._rows.num_computed_tokens[self.row])

    @property
    def reads_cache(self) -> bool:
        """Whether it may start from a cached prefix. False while it still needs log probabilities of its prompt, or if
        the states of its tokens are pooled."""
        if self.request.pooling is not None:
            return not self.request.pooling.every_token
        return self.request.params.prompt_logprobs is None or len(self.tokens) > self.num_prompt_tokens

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def arrival(self) -> float:
        return self.request.arrival

    @property
    def feature_args(self) -> Mapping[str, str]:
        return self.request.feature_args

    @property
    def tenant(self) -> str:
        return self.request.tenant

    @property
    def media(self) -> Sequence[PlacedMedia]:
        return self.request.media

    @property
    def pools(self) -> bool:
        return self.request.pooling is not None

    @property
    def num_sources(self) -> int:
        """Positions of its encoder, which its tokens see through cross attention."""
        return sum(media.length for media in self.request.media)


@dataclass(frozen=True)
class Work:
    """Rows with tokens to compute, in order of rank and arrival."""

    # [rows] intp.
    rows: Array
    # [rows] int32: the first position to compute in each.
    starts: Array
    # [rows] int32: how many tokens each has to compute.
    num_remaining: Array

    @cached_property
    def decodes(self) -> bool:
        """Whether every row has one token left."""
        return bool(self.num_remaining.max(initial=0) <= 1)

    def where(self, mask: Array) -> Work:
        return self if mask.all() else Work(self.rows[mask], self.starts[mask], self.num_remaining[mask])

    def at(self, place: int) -> tuple[int, int, int]:
        return int(self.rows[place]), int(self.starts[place]), int(self.num_remaining[place])

    def single(self, place: int) -> Work:
        only = slice(place, place + 1)
        return Work(self.rows[only], self.starts[only], self.num_remaining[only])


class Rows:
    """Arrays indexed by row; the runner uses the same row numbers."""

    def __init__(self, num_rows: int, max_model_len: int) -> None:
        self.num_rows = num_rows
        # [rows, max_model_len] int32: the tokens that have arrived; memory is touched only as far as rows get.
        self.tokens = np.zeros((num_rows, max_model_len), dtype=np.int32)
        # [rows] int8: a RowStatus.
        self.status = np.zeros(num_rows, dtype=np.int8)

        # [4, rows] int32: all that work() reads, in one array. The next four are views of it.
        self._work_counts = np.zeros((4, num_rows), dtype=np.int32)
        # Tokens of prompt and completion that have arrived here.
        self.num_tokens = self._work_counts[0]
        # Tokens being sampled by steps in flight.
        self.pending = self._work_counts[1]
        # Tokens in the KV cache once the steps in flight are done.
        self.num_computed_tokens = self._work_counts[2]
        # The request ends with this many tokens.
        self.max_total = self._work_counts[3]
        self.num_prompt_tokens = np.zeros(num_rows, np.int32)
        # Tokens that are in the KV cache already.
        self.num_retired = np.zeros(num_rows, np.int32)
        # Stop tokens do not count before this many tokens.
        self.min_total = np.zeros(num_rows, np.int32)
        # Tokens that the prefix cache has blocks for.
        self.num_cached = np.zeros(num_rows, np.int32)

        self.ignores_eos = np.zeros(num_rows, dtype=bool)
        # The request has stop tokens of its own.
        self.has_stop_ids = np.zeros(num_rows, dtype=bool)
        # A feature restricts its tokens.
        self.masked = np.zeros(num_rows, dtype=bool)
        # The request has Restrictions.
        self.restricted = np.zeros(num_rows, dtype=bool)
        # The request pools: it ends when its prompt is computed.
        self.pooled = np.zeros(num_rows, dtype=bool)

        # [rows] int64: of the request.
        self.key = np.zeros(num_rows, dtype=np.int64)
        # [rows] int64: of arrival.
        self.order = np.zeros(num_rows, dtype=np.int64)
        # [rows] float64: from the policy.
        self.rank = np.zeros(num_rows, dtype=np.float64)
        # [rows] int64: the step that samples its newest token.
        self.sampled_step = np.full(num_rows, NO_STEP, dtype=np.int64)

        # Rows with has_stop_ids.
        self.num_naming = 0
        # Rows that are masked.
        self.num_masked = 0
        # Rows that are restricted.
        self.num_restricted = 0
        # Increases whenever the request of a row ends or a row is freed.
        self.departures = 0
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
        self.set_status(row, RowStatus.RESERVED)
        self.key[row], self.order[row], self.rank[row] = request.key, request.order, request.rank
        self.num_prompt_tokens[row], self.num_tokens[row] = request.num_prompt_tokens, len(request.tokens)

    def open(self, row: int, num_computed_tokens: int, max_total: int) -> None:
        """The row's request starts to run; the KV cache already holds its first num_computed_tokens tokens."""
        request = self.request(row)
        params = request.request.params
        self.tokens[row, : len(request.tokens)] = request.tokens
        self.num_computed_tokens[row] = self.num_retired[row] = num_computed_tokens
        self.min_total[row], self.max_total[row] = request.num_prompt_tokens + params.min_tokens, max_total
        self.ignores_eos[row], self.has_stop_ids[row] = params.ignore_eos, bool(params.stop_token_ids)
        self.num_naming += bool(params.stop_token_ids)
        self.masked[row] = request.features.masks
        self.num_masked += request.features.masks
        self.restricted[row] = request.restrictions is not None
        self.num_restricted += request.restrictions is not None
        self.pooled[row] = request.pools
        self.set_status(row, RowStatus.RUNNING)

    def set_status(self, row: int, status: RowStatus) -> None:
        self.departures += status in (RowStatus.ENDED, RowStatus.FREE)
        self.status[row] = status
        self._running = None

    def close(self, row: int) -> None:
        """Frees a row. A preempted request keeps its tokens."""
        request = self.request(row)
        if self.status[row] == RowStatus.PREEMPTED:
            request.tokens = self.tokens[row, : self.num_tokens[row]].copy()
        request.row = NO_ROW
        self.requests[row] = None
        for counts in self._counts:
            counts[row] = 0
        self.num_naming -= bool(self.has_stop_ids[row])
        self.num_masked -= bool(self.masked[row])
        self.num_restricted -= bool(self.restricted[row])
        self.has_stop_ids[row] = self.masked[row] = self.restricted[row] = self.pooled[row] = False
        self.sampled_step[row] = NO_STEP
        self.set_status(row, RowStatus.FREE)
        self._free.append(row)

    def goes_on(self, row: int) -> bool:
        """Whether the row's request has not ended."""
        return self.status[row] in (RowStatus.RUNNING, RowStatus.PREEMPTED)

    @property
    def _counts(self) -> tuple[Array, ...]:
        """The arrays that are 0 in a free row."""
        known = self.num_prompt_tokens, self.num_tokens, self.pending
        return *known, self.num_computed_tokens, self.num_retired, self.num_cached

    # ---- many rows at once -------------------------------------------------------------------------------------------

    @property
    def running(self) -> Array:
        """The running rows in order of rank and arrival, as intp, which indexes fastest."""
        if self._running is None:
            rows = np.flatnonzero(self.status == RowStatus.RUNNING)
            self._running = rows[np.lexsort((self.order[rows], self.rank[rows]))]
        return self._running

    def work(self) -> Work:
        """The tokens that running rows have to compute, including those being sampled by steps in flight. A request's
        last token is never computed, so a row whose last token is being sampled, or which is being pooled, has nothing
        left."""
        rows = self.running
        num_tokens, pending, starts, max_total = self._work_counts.take(rows, axis=1)
        left = np.minimum(num_tokens + pending, max_total - 1) - starts
        work = Work(rows, starts, left)
        return work if left.min(initial=1) > 0 else work.where(left > 0)

    def advance(self, rows: Array, ends: Array, sampling: Array, step: int) -> None:
        """Records a scheduled step: it computes the tokens of rows up to `ends`, and rows in `sampling` get one more
        token."""
        self.num_computed_tokens[rows] = ends
        self.pending[sampling] += 1
        self.sampled_step[sampling] = step

    def going_on(self, rows: Array) -> Array:
        """A mask of the rows whose request has not ended."""
        status = self.status[rows]
        going: Array = (status == RowStatus.RUNNING) | (status == RowStatus.PREEMPTED)
        return going

    def answer(self, row: int) -> Array:
        """The tokens after the prompt that have arrived."""
        tokens: Array = self.tokens[row, self.num_prompt_tokens[row] : self.num_tokens[row]]
        return tokens

    def append(self, rows: Array, tokens: Array) -> None:
        """Adds the next token of each of the rows."""
        at = self.num_tokens[rows]
        self.tokens[rows, at] = tokens
        self.num_tokens[rows] = at + 1

    def check_idle(self) -> None:
        """Asserts that no state is left when there are no requests."""
        assert not self.used, "a row is in use"
        assert sorted(self._free) == list(range(self.num_rows)), "a row is lost, or free twice"
        assert not self.status.any(), "a free row has a status"
        assert not self.num_naming, "a free row has stop tokens"
        assert not self.num_masked, "a free row is masked"
        assert not self.num_restricted, "a free row has restrictions"
        for counts in self._counts:
            assert not counts.any(), "a free row has tokens"
        assert (self.sampled_step == NO_STEP).all(), "a free row remembers a step"


@dataclass(frozen=True)
class Ending:
    """Why a request's newest token is its last. stop_token: the one of its stop_token_ids that ended it, if any.
    complete: a feature allows no token after it."""

    request: TrackedRequest
    reason: FinishReason
    stop_token: int | None = None
    complete: bool = False


class StopRules:
    """Finds the requests that end: by an end-of-text token of the model, a stop token of their own, or their length. It
    checks all rows of a step at once."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos = frozenset(eos_token_ids)

    def endings(self, rows: Rows, drawn: Array, tokens: Array) -> list[Ending]:
        """The requests that end with the token they just got. drawn [n]: their rows. tokens [n] int32: the token of
        each."""
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
