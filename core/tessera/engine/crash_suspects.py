"""Finds the request that crashes engines, so that it ends and the others go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera.engine.completion import RequestState

SUSPECT_CRASHES = 2
"""A request that may have run when this many engines crashed runs alone from then on."""
MARGIN_TOKENS = 16
"""Tokens of a completion that an engine may have generated, and not reported, when it crashed."""


class CrashSuspects:
    """Which of the requests that start over may run, and with which others.

    Requests that may have run when SUSPECT_CRASHES engines crashed are suspects. They run on the next engine one after
    the other, with nothing beside them. A suspect that gets further than it ever did, by MARGIN_TOKENS, is cleared; one
    that the engine crashes with is the culprit. While there are suspects, all other requests wait.
    """

    def __init__(self) -> None:
        # Of the requests in progress: how many engines crashed that may have run them.
        self._crashes: dict[RequestState, int] = {}
        # The most tokens that such a request had when an engine crashed.
        self._num_tokens: dict[RequestState, int] = {}
        self._suspects: deque[RequestState] = deque()
        self._waiting: list[RequestState] = []
        self._running_alone: RequestState | None = None

    def record_crash(self, states: Iterable[RequestState]) -> RequestState | None:
        """The engine crashed. states: the requests that it may have run. Returns the culprit, if it is certain."""
        alone, self._running_alone = self._running_alone, None
        waiting = {*self._suspects, *self._waiting}
        self._suspects.clear()
        self._waiting.clear()
        if alone is not None and not alone.finished:
            self._forget(alone)
            return alone
        for state in states:
            if state not in waiting:
                self._crashes[state] = self._crashes.get(state, 0) + 1
                self._num_tokens[state] = max(self._num_tokens.get(state, 0), state.num_generated_tokens)
        return None

    def replay(self, states: Iterable[RequestState]) -> list[RequestState]:
        """Another engine is ready. states: the requests in progress. Returns those to send to it now."""
        for state in states:
            is_suspect = self._crashes.get(state, 0) >= SUSPECT_CRASHES
            (self._suspects if is_suspect else self._waiting).append(state)
        return self.release()

    def admits(self, state: RequestState) -> bool:
        """Whether a new request may be sent now. If not, release() returns it later."""
        if self._running_alone is not None:
            self._waiting.append(state)
        return self._running_alone is None

    def release(self) -> list[RequestState]:
        """Call after outputs, and after requests have ended. Returns the requests to send now."""
        if self._running_alone is not None and not self._is_cleared(self._running_alone):
            return []
        if self._running_alone is not None:
            self._forget(self._running_alone)
            self._running_alone = None
        while self._suspects:
            suspect = self._suspects.popleft()
            if not suspect.finished:
                self._running_alone = suspect
                return [suspect]
        released = [state for state in self._waiting if not state.finished]
        self._waiting.clear()
        for state in [state for state in self._crashes if state.finished]:
            self._forget(state)
        return released

    def _is_cleared(self, suspect: RequestState) -> bool:
        margin = MARGIN_TOKENS * len(suspect.completions)
        return suspect.finished or suspect.num_generated_tokens > self._num_tokens[suspect] + margin

    def _forget(self, state: RequestState) -> None:
        self._crashes.pop(state, None)
        self._num_tokens.pop(state, None)
