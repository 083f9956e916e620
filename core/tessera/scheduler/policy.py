"""The three choices a scheduler leaves to a policy: who is next, may it start, who gives way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tessera.errors import ConfigError
from tessera.platform.launch import RequestView


class SchedulingPolicy(ABC):
    """Sequences come in order of arrival. What does not fit is never asked about: rows, blocks and other resources are
    the scheduler's business."""

    @abstractmethod
    def next(self, waiting: Sequence[RequestView]) -> RequestView:
        """Which of the waiting requests (at least one) starts next. Nobody overtakes it: if it cannot start now, nobody
        does."""

    @abstractmethod
    def victim(self, running: Sequence[RequestView]) -> RequestView:
        """Which of the running requests (at least one, the one in need of blocks among them) gives its blocks back and
        is recomputed later."""

    def may_start(self, request: RequestView, num_running: int) -> bool:
        """Whether a request for which there is room starts now. It must say yes where nothing runs. Default: yes."""
        return True

    def step_took(self, seconds: float, num_tokens: int) -> None:
        """Hears how long each step took from schedule() to update(), and how many tokens it computed. Default:
        nothing."""


class FirstComeFirstServed(SchedulingPolicy):
    """In order of arrival; the last to arrive gives way. So the oldest request always goes on."""

    def next(self, waiting: Sequence[RequestView]) -> RequestView:
        return waiting[0]

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return running[-1]


POLICIES: Mapping[str, type[SchedulingPolicy]] = {"fcfs": FirstComeFirstServed}


def policy_named(name: str) -> SchedulingPolicy:
    """Raises ConfigError for a name that is not known."""
    if name not in POLICIES:
        raise ConfigError(
            f"--scheduling-policy {name} is not known; there is {', '.join(POLICIES)}.", param="scheduler.policy"
        )
    return POLICIES[name]()
