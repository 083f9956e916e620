"""The readers of requests' outputs: wakes them when there is something to read, and limits what they leave unread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tessera.errors import AnswerTooLargeError, OverloadedError, TesseraError
from tessera.log import about

if TYPE_CHECKING:
    from tessera.engine.completion import RequestState

log = logging.getLogger(__name__)

MAX_UNREAD = 1 << 21  # tokens and log probabilities that all answers hold together, about 200 MB at most
SHARE = 2  # an answer may hold half of that
COUNT_SECONDS = 0.25  # between two counts of these


class OutputReaders:
    """The requests whose readers have not come to the end."""

    def __init__(self) -> None:
        # What wakes each reader. By state, because an id may be used again before its first reader is at the end.
        self._events: dict[RequestState, asyncio.Event] = {}
        # Tokens and log probabilities, when they were last counted.
        self._num_unread = 0
        # Seconds on time.monotonic().
        self._counted_at = 0.0

    def add(self, state: RequestState) -> asyncio.Event:
        """Returns the event that is set when there may be something to read."""
        event = self._events[state] = asyncio.Event()
        return event

    def remove(self, state: RequestState) -> None:
        del self._events[state]

    def wake(self, states: Iterable[RequestState]) -> None:
        for state in states:
            event = self._events.get(state)
            if event is not None:
                event.set()

    def check_room(self, now: float) -> None:
        """Raises OverloadedError if another answer must not begin."""
        if self._num_unread > MAX_UNREAD // 2 and now - self._counted_at > COUNT_SECONDS:
            self._count(now)  # no output of the engine does it if nothing runs
        if self._num_unread > MAX_UNREAD // 2:
            raise OverloadedError("Too much of other answers waits to be read; try again later.")

    def take_largest(self, now: float) -> Iterator[tuple[RequestState, TesseraError]]:
        """Requests to end because their answers take too much memory, and why: each that holds more than its own share,
        then those that hold most until all together hold no more than they may."""
        if now - self._counted_at <= COUNT_SECONDS:
            return
        for state, unread in sorted(self._count(now).items(), key=lambda item: -item[1]):
            if unread <= MAX_UNREAD // SHARE and self._num_unread <= MAX_UNREAD:
                break
            self._num_unread -= unread
            log.warning("ended, for %d values that nobody reads", unread, extra=about(state.request_id))
            error: TesseraError = OverloadedError("All answers together take too much memory; try again later.")
            if unread > MAX_UNREAD // SHARE:
                error = AnswerTooLargeError(
                    "This answer takes too much memory: read it faster if it is a stream, or ask for fewer or shorter "
                    "answers (n, max_tokens) or fewer log probabilities."
                )
            yield state, error

    def _count(self, now: float) -> dict[RequestState, int]:
        self._counted_at = now
        unread = {state: state.num_unread for state in self._events}
        self._num_unread = sum(unread.values())
        return unread
