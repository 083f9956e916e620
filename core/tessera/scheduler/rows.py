"""The state of all requests that have a row, in arrays, so that a step over many rows touches no object of any of
them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from tessera.arrays import Array
from tessera.kvcache.prefix_cache import HashChain
from tessera.scheduler.tracked import NO_ROW, TrackedRequest

NO_STEP = -1


class Status(IntEnum):
    """Of a row. RESERVED: its request waits for a sibling's prompt. PREEMPTED and ENDED: it is used by steps in flight
    and closes after them."""

    FREE = 0
    RESERVED = 1
    RUNNING = 2
    PREEMPTED = 3
    ENDED = 4


@dataclass(frozen=True)
class Work:
    """rows (intp) that have something to compute, in the policy's order; starts, where each goes on; left, how many
    tokens each has to compute (both int32)."""

    rows: Array
    starts: Array
    left: Array

    @cached_property
    def decodes(self) -> bool:
        """Whether each row has one token left."""
        return bool(self.left.max(initial=0) <= 1)

    def where(self, mask: Array) -> Work:
        return self if mask.all() else Work(self.rows[mask], self.starts[mask], self.left[mask])

    def at(self, place: int) -> tuple[int, int, int]:
        return int(self.rows[place]), int(self.starts[place]), int(self.left[place])

    def one(self, place: int) -> Work:
        only = slice(place, place + 1)
        return Work(self.rows[only], self.starts[only], self.left[only])


class Rows:
    """Arrays over rows; a row is the same in the runner's state.

    int32: num_prompt_tokens; num_tokens, known here, prompt and answer; num_computed_tokens, in the cache once the
    steps in flight are done; num_retired, in the cache already; pending, sampled in steps in flight; min_total and
    max_total, tokens before which no stop token counts and after which it ends; num_cached, known to the prefix cache.
    int64: key, order (of arrival); sampled_step that drew its newest token. rank float64: the policy's.
    tokens [rows, max_model_len] int32: what is known; memory is touched only as far as rows get.
    num_naming: rows whose request names tokens that end it. departures: counts requests that ended or left their row.
    """

    def __init__(self, num_rows: int, max_model_len: int) -> None:
        self.num_rows = num_rows
        self.tokens = np.zeros((num_rows, max_model_len), dtype=np.int32)
        self.status = np.zeros(num_rows, dtype=np.int8)
        self._left = np.zeros((4, num_rows), dtype=np.int32)  # what work() asks for, so that it asks once
        self.num_tokens, self.pending, self.num_computed_tokens, self.max_total = self._left
        self.num_prompt_tokens, self.num_retired, self.min_total, self.num_cached = np.zeros(
            (4, num_rows), dtype=np.int32
        )
        self.ignores_eos, self.has_stop_ids = np.zeros((2, num_rows), dtype=bool)
        self.key, self.order = np.zeros((2, num_rows), dtype=np.int64)
        self.rank = np.zeros(num_rows, dtype=np.float64)
        self.sampled_step = np.full(num_rows, NO_STEP, dtype=np.int64)
        self.num_naming = self.departures = 0
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

    def chain(self, row: int) -> HashChain:
        """Of a row's tokens, where there is a prefix cache."""
        chain = self.request(row).chain
        assert chain is not None
        return chain

    def take(self, request: TrackedRequest) -> int:
        """A free row for a request, reserved."""
        row = self._free.pop()
        request.row = row
        self.requests[row] = request
        self.set_status(row, Status.RESERVED)
        self.key[row], self.order[row], self.rank[row] = request.key, request.order, request.rank
        self.num_prompt_tokens[row], self.num_tokens[row] = request.num_prompt_tokens, len(request.tokens)
        return row

    def open(self, row: int, num_computed_tokens: int, max_total: int) -> None:
        """Its request runs from now on, num_computed_tokens of its tokens being in the cache."""
        request = self.request(row)
        params = request.request.params
        self.tokens[row, : len(request.tokens)] = request.tokens
        self.num_computed_tokens[row] = self.num_retired[row] = num_computed_tokens
        self.min_total[row], self.max_total[row] = request.num_prompt_tokens + params.min_tokens, max_total
        self.ignores_eos[row], self.has_stop_ids[row] = params.ignore_eos, bool(params.stop_token_ids)
        self.num_naming += bool(params.stop_token_ids)
        self.set_status(row, Status.RUNNING)

    def set_status(self, row: int, status: Status) -> None:
        self.departures += status in (Status.ENDED, Status.FREE)
        self.status[row] = status
        self._running = None

    def close(self, row: int) -> None:
        """Its request, where it goes on, takes what it has with it."""
        request = self.request(row)
        if self.status[row] == Status.PREEMPTED:
            request.tokens = self.tokens[row, : self.num_tokens[row]].copy()
        request.row = NO_ROW
        self.requests[row] = None
        for counts in (
            self.num_prompt_tokens,
            self.num_tokens,
            self.num_computed_tokens,
            self.num_retired,
            self.pending,
            self.num_cached,
        ):
            counts[row] = 0
        self.num_naming -= bool(self.has_stop_ids[row])
        self.has_stop_ids[row] = False
        self.sampled_step[row] = NO_STEP
        self.set_status(row, Status.FREE)
        self._free.append(row)

    # ---- many rows at once -------------------------------------------------------------------------------------------

    @property
    def running(self) -> Array:
        """Rows that run, in order of rank and arrival, as they index arrays the fastest (intp)."""
        if self._running is None:
            rows = np.flatnonzero(self.status == Status.RUNNING)
            self._running = rows[np.lexsort((self.order[rows], self.rank[rows]))]
        return self._running

    def work(self) -> Work:
        """Of running rows, a token in flight included. A row's last token is never computed, so that one whose steps
        in flight draw it has none left."""
        rows = self.running
        num_tokens, pending, starts, max_total = self._left.take(rows, axis=1)
        left = np.minimum(num_tokens + pending, max_total - 1) - starts
        work = Work(rows, starts, left)
        return work if left.min(initial=1) > 0 else work.where(left > 0)

    def advance(self, rows: Array, ends: Array, sampling: Array, step: int) -> None:
        """Rows take part in a step that computes their tokens up to ends; those that sample draw one more."""
        self.num_computed_tokens[rows] = ends
        self.pending[sampling] += 1
        self.sampled_step[sampling] = step

    def going_on(self, rows: Array) -> Array:
        """Which of rows have a request that has not ended, as a mask."""
        status = self.status[rows]
        going: Array = (status == Status.RUNNING) | (status == Status.PREEMPTED)
        return going

    def goes_on(self, row: int) -> bool:
        return self.status[row] in (Status.RUNNING, Status.PREEMPTED)

    def append(self, rows: Array, tokens: Array) -> None:
        """One more known token for each of rows."""
        at = self.num_tokens[rows]
        self.tokens[rows, at] = tokens
        self.num_tokens[rows] = at + 1

    def check_idle(self) -> None:
        """Asserts that nobody has left anything."""
        assert not self.used, "a row is in use"
        assert sorted(self._free) == list(range(self.num_rows)), "a row is lost, or free twice"
        assert not self.status.any(), "a free row has a status"
        assert not self.num_naming, "a free row names tokens"
        for counts in (
            self.num_prompt_tokens,
            self.num_tokens,
            self.num_computed_tokens,
            self.num_retired,
            self.pending,
            self.num_cached,
        ):
            assert not counts.any(), "a free row has tokens"
        assert (self.sampled_step == NO_STEP).all(), "a free row remembers a step"
