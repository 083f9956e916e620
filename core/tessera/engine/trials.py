"""Finds the request that kills engines, so that it ends and the others go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera.engine.completion import RequestState

SUSPECT = 2
"""A request that may have run when this many engines died runs alone from then on."""
MARGIN = 16
"""Tokens of a completion that an engine may have made, and not reported, when it died."""


class Trials:
    """Which of the requests that start over may run, and with whom.

    Requests that may have run when SUSPECT engines died are suspects. They run on the next engine one after the
    other, with nothing beside them. A suspect that gets further than it ever did, by MARGIN tokens, is cleared; one
    that the engine dies with is guilty. While there are suspects, all other requests are held.
    """

    def __init__(self) -> None:
        self._deaths: dict[RequestState, int] = {}
        """Of the requests in progress: how many engines died that may have run them."""
        self._made: dict[RequestState, int] = {}
        """The most tokens that such a request had when an engine died."""
        self._suspects: deque[RequestState] = deque()
        self._held: list[RequestState] = []
        self._tried: RequestState | None = None

    def lost(self, states: Iterable[RequestState]) -> RequestState | None:
        """The engine died. states: the requests that it may have run. Returns the guilty one, if it is known."""
        guilty, self._tried = self._tried, None
        waiting = {*self._suspects, *self._held}
        self._suspects.clear()
        self._held.clear()
        if guilty is not None and not guilty.finished:
            self._forget(guilty)
            return guilty
        for state in states:
            if state not in waiting:
                self._deaths[state] = self._deaths.get(state, 0) + 1
                self._made[state] = max(self._made.get(state, 0), state.num_made)
        return None

    def replay(self, states: Iterable[RequestState]) -> list[RequestState]:
        """Another engine is ready. states: the requests in progress. Returns those to send to it now."""
        for state in states:
            suspected = self._deaths.get(state, 0) >= SUSPECT
            (self._suspects if suspected else self._held).append(state)
        return self.go_on()

    def admits(self, state: RequestState) -> bool:
        """Whether a new request may be sent now. If not, go_on() returns it later."""
        if self._tried is not None:
            self._held.append(state)
        return self._tried is None

    def go_on(self) -> list[RequestState]:
        """Call after outputs, and after requests have ended. Returns the requests to send now."""
        if self._tried is not None and not self._is_over(self._tried):
            return []
        if self._tried is not None:
            self._forget(self._tried)
            self._tried = None
        while self._suspects:
            suspect = self._suspects.popleft()
            if not suspect.finished:
                self._tried = suspect
                return [suspect]
        freed = [state for state in self._held if not state.finished]
        self._held.clear()
        for state in [state for state in self._deaths if state.finished]:
            self._forget(state)
        return freed

    def _is_over(self, suspect: RequestState) -> bool:
        return suspect.finished or suspect.num_made > self._made[suspect] + MARGIN * len(suspect.completions)

    def _forget(self, state: RequestState) -> None:
        self._deaths.pop(state, None)
        self._made.pop(state, None)
