"""The choices a scheduler leaves to a policy: who is next, may it start, who gives way."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tessera.errors import ConfigError
from tessera.platform.launch import RequestView


class SchedulingPolicy(ABC):  # noqa: B024 - every choice has a default, and FirstComeFirstServed is all of them
    """Requests wait and run in the order of their rank, those of equal rank in the order of arrival. What does not fit
    is never asked about: rows, blocks and other resources are the scheduler's business.

    preemptive: a waiting request may take the place of running ones, so preempts() is asked.
    """

    preemptive: ClassVar[bool] = False

    def rank(self, request: RequestView) -> float:
        """The smallest goes first. Asked once, when the request arrives. Default: all are equal."""
        return 0.0

    def queue(self, request: RequestView) -> str:
        """The name of the queue it waits in; next() chooses among the first of each. Default: one for all."""
        return ""

    def next(self, heads: Sequence[RequestView]) -> RequestView:
        """Which of the first of each queue (at least one, in order) starts next. Nobody overtakes it: if it cannot
        start now, nobody does. Default: the first."""
        return heads[0]

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        """Which of the running requests (at least one, in order) gives its blocks back and is recomputed later.
        Default: the last."""
        return running[-1]

    def preempts(self, newcomer: RequestView, running: RequestView) -> bool:
        """Whether a running request gives way to a waiting one that has no room otherwise, and a prompt in the middle
        waits for it. It must not hold both ways, now or after the one has given way to the other."""
        return False

    def may_start(self, request: RequestView, num_running: int) -> bool:
        """Whether a request for which there is room starts now. It must say yes where nothing runs. Default: yes."""
        return True

    def placed(self, request: RequestView) -> None:
        """Hears that a request has a place. Default: nothing."""

    def left(self, request: RequestView) -> None:
        """Hears that a request gave up its place: it ended, or was preempted. Default: nothing."""

    def step_took(self, seconds: float, num_tokens: int) -> None:
        """Hears how long each step took from schedule() to update(), and how many tokens it computed. Default:
        nothing."""


class FirstComeFirstServed(SchedulingPolicy):
    """In order of arrival; the last to arrive gives way. So the oldest request always goes on."""


class Priority(SchedulingPolicy):
    """The lowest priority number first, in order of arrival among equals. The least urgent that came last gives way,
    also to a more urgent newcomer."""

    preemptive = True

    def rank(self, request: RequestView) -> float:
        return float(request.priority)

    def preempts(self, newcomer: RequestView, running: RequestView) -> bool:
        return newcomer.priority < running.priority


class FairShare(SchedulingPolicy):
    """Tenants have equal shares. A tenant's share is its part of all places, or of all tokens in them, whichever is
    larger. Whoever has the smallest goes first, in order of arrival among equals; the last of whoever has the largest
    gives way, also to a newcomer whose tenant has no more than the other then. Tokens count as they were when a request
    got its place."""

    preemptive = True

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        self._held: dict[str, _Held] = {}
        self._all = _Held()

    def queue(self, request: RequestView) -> str:
        return request.tenant

    def next(self, heads: Sequence[RequestView]) -> RequestView:
        return min(heads, key=self._share)

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(reversed(running), key=self._share)

    def preempts(self, newcomer: RequestView, running: RequestView) -> bool:
        if newcomer.tenant == running.tenant:
            return False
        comes, goes = _Held(1, newcomer.num_tokens), _Held(-1, -self._tokens[running.key])
        everything = self._all + comes + goes
        return (self._of(newcomer) + comes).part(everything) <= (self._of(running) + goes).part(everything)

    def placed(self, request: RequestView) -> None:
        tokens = self._tokens[request.key] = request.num_tokens
        self._change(request, _Held(1, tokens))

    def left(self, request: RequestView) -> None:
        self._change(request, _Held(-1, -self._tokens.pop(request.key)))

    def _change(self, request: RequestView, change: _Held) -> None:
        self._all += change
        held = self._held[request.tenant] = self._of(request) + change
        if not held.places:
            del self._held[request.tenant]

    def _of(self, request: RequestView) -> _Held:
        return self._held.get(request.tenant, _Held())

    def _share(self, request: RequestView) -> float:
        return self._of(request).part(self._all)


@dataclass(frozen=True)
class _Held:
    """Places, and tokens of the requests in them."""

    places: int = 0
    tokens: int = 0

    def __add__(self, other: _Held) -> _Held:
        return _Held(self.places + other.places, self.tokens + other.tokens)

    def part(self, all_: _Held) -> float:
        return max(self.places / max(all_.places, 1), self.tokens / max(all_.tokens, 1))


POLICIES: Mapping[str, type[SchedulingPolicy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": Priority,
    "fair": FairShare,
}


def policy_named(name: str) -> SchedulingPolicy:
    """Raises ConfigError for a name that is not known."""
    if name not in POLICIES:
        raise ConfigError(
            f"--scheduling-policy {name} is not known; there is {', '.join(POLICIES)}.", param="scheduler.policy"
        )
    return POLICIES[name]()
