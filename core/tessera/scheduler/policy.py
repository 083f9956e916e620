"""The choices a scheduler leaves to a policy: who is next, may it start, who gives way."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Tenants have equal shares of the places: whoever has the fewest requests in places goes first, in order of
    arrival among equals. The last of whoever has the most gives way, also to a newcomer as long as that evens the
    shares out."""

    preemptive = True

    def __init__(self) -> None:
        self._places: Counter[str] = Counter()

    def queue(self, request: RequestView) -> str:
        return request.tenant

    def next(self, heads: Sequence[RequestView]) -> RequestView:
        return min(heads, key=self._held)

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(reversed(running), key=self._held)

    def preempts(self, newcomer: RequestView, running: RequestView) -> bool:
        return self._held(newcomer) + 2 <= self._held(running)

    def placed(self, request: RequestView) -> None:
        self._places[request.tenant] += 1

    def left(self, request: RequestView) -> None:
        self._places[request.tenant] -= 1
        if not self._places[request.tenant]:
            del self._places[request.tenant]

    def _held(self, request: RequestView) -> int:
        return self._places[request.tenant]


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
