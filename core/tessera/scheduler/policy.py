"""Scheduling policies: which request starts next, whether it may start now, and which one is preempted."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tessera.platform.launch import RequestView


class SchedulingPolicy(ABC):  # noqa: B024 - every method has a default; FirstComeFirstServed uses them all
    """Requests wait and run in the order of their rank, and of arrival if their rank is equal. A policy need not check
    rows, blocks or other resources; the scheduler does that.

    preemptive: a waiting request may displace running ones; preempts() decides.
    """

    preemptive: ClassVar[bool] = False

    def rank(self, request: RequestView) -> float:
        """The rank of a request; the smallest comes first. Called once, when the request arrives. Default: all are
        equal."""
        return 0.0

    def queue(self, request: RequestView) -> str:
        """The name of the queue that a request waits in; next() chooses among the heads of all queues. Called once,
        when the request arrives. Default: one queue for all."""
        return ""

    def next(self, heads: Sequence[RequestView]) -> RequestView:
        """Which request starts next. heads: the first request of each queue, at least one, in order. If the chosen one
        cannot start now, no other request starts. Default: the first."""
        return heads[0]

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        """Which running request to preempt: it frees its blocks and is recomputed later. running: at least one, in
        order. Default: the last."""
        return running[-1]

    def preempts(self, newcomer: RequestView, running: RequestView) -> bool:
        """Whether a running request is preempted if a waiting one, the newcomer, has no room otherwise. A partly
        computed prompt then also lets the newcomer start first. Two requests must never preempt each other, neither now
        nor after one of them was preempted. Default: no."""
        return False

    def may_start(self, request: RequestView, num_running: int) -> bool:
        """Whether a request may start now if there is room. Must return True if no request is running. Default: yes."""
        return True

    def placed(self, request: RequestView) -> None:
        """Called when a request gets a row. Default: nothing."""

    def removed(self, request: RequestView) -> None:
        """Called when a request leaves its row: it ended or was preempted. Default: nothing."""

    def step_took(self, seconds: float, num_tokens: int) -> None:
        """Called after each step with the seconds from schedule() to update() and the number of tokens it computed.
        Default: nothing."""


class FirstComeFirstServed(SchedulingPolicy):
    """Requests run in order of arrival, and the last to arrive is preempted, so the oldest always makes progress."""


class Priority(SchedulingPolicy):
    """The lowest priority number runs first; equal ones run in order of arrival. The last to arrive among the least
    urgent is preempted, also for a more urgent newcomer."""

    preemptive = True

    def rank(self, request: RequestView) -> float:
        return float(request.priority)

    def preempts(self, newcomer: RequestView, running: RequestView) -> bool:
        return newcomer.priority < running.priority


class FairShare(SchedulingPolicy):
    """Gives tenants equal shares. A tenant's share is its fraction of all rows in use, or of all tokens in them,
    whichever is larger. The tenant with the smallest share starts next, in order of arrival among equals. The last
    request of the tenant with the largest share is preempted, also for a newcomer whose tenant would then not have the
    larger share. A request counts with the tokens it had when it got its row."""

    preemptive = True

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        self._usage: dict[str, _RowUsage] = {}
        self._all = _RowUsage()

    def queue(self, request: RequestView) -> str:
        return request.tenant

    def next(self, heads: Sequence[RequestView]) -> RequestView:
        return min(heads, key=self._share)

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(reversed(running), key=self._share)

    def preempts(self, newcomer: RequestView, running: RequestView) -> bool:
        if newcomer.tenant == running.tenant:
            return False
        comes, goes = _RowUsage(1, newcomer.num_tokens), _RowUsage(-1, -self._tokens[running.key])
        everything = self._all + comes + goes
        gaining, losing = self._tenant_usage(newcomer) + comes, self._tenant_usage(running) + goes
        return gaining.part(everything) <= losing.part(everything)

    def placed(self, request: RequestView) -> None:
        tokens = self._tokens[request.key] = request.num_tokens
        self._change(request, _RowUsage(1, tokens))

    def removed(self, request: RequestView) -> None:
        self._change(request, _RowUsage(-1, -self._tokens.pop(request.key)))

    def _change(self, request: RequestView, change: _RowUsage) -> None:
        self._all += change
        usage = self._usage[request.tenant] = self._tenant_usage(request) + change
        if not usage.places:
            del self._usage[request.tenant]

    def _tenant_usage(self, request: RequestView) -> _RowUsage:
        return self._usage.get(request.tenant, _RowUsage())

    def _share(self, request: RequestView) -> float:
        return self._tenant_usage(request).part(self._all)


@dataclass(frozen=True)
class _RowUsage:
    """The rows that a tenant holds, and the tokens of the requests in them."""

    places: int = 0
    tokens: int = 0

    def __add__(self, other: _RowUsage) -> _RowUsage:
        return _RowUsage(self.places + other.places, self.tokens + other.tokens)

    def part(self, all_: _RowUsage) -> float:
        return max(self.places / max(all_.places, 1), self.tokens / max(all_.tokens, 1))
