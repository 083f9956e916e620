"""Whether an engine still gets on with its work, by what it says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from tessera.engine.messages import Alive

BUSY = 10  # times as long as an idle one may a step last that uses the processor: it may just be a slow machine
TICKS = 8  # of a limit


class Watchdog:
    """Hears an engine's signs of life; tick() lets time pass.

    limit: seconds that an engine may be silent, or in a step that uses no processor time.
    """

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval = min(1.0, limit / TICKS)
        self._limit = limit
        self._clock = clock
        self._last = clock()
        self._silent = 0.0
        self._step = Alive()

    def heard(self, step: Alive | None = None) -> None:
        """step: how long the present one has run; None after anything else, which says that the engine is none."""
        self._silent = 0.0
        self._last = self._clock()
        self._step = step or Alive()

    def tick(self) -> None:
        """At least each `interval`. A tick that comes late does not count whole: who ticks was held up himself, and
        then messages may be waiting."""
        now = self._clock()
        self._silent += min(now - self._last, 2 * self.interval)
        self._last = now

    @property
    def silent(self) -> float:
        """Seconds since the last sign of life."""
        return self._silent

    @property
    def stalled(self) -> bool:
        """Half of its time is over."""
        return self._stuck > self._limit / 2

    @property
    def hang(self) -> str | None:
        """How it hangs, in words; None where it does not."""
        if self._stuck <= self._limit:
            return None
        if self._silent > self._limit:
            return f"gave no sign of life for {self._silent:.0f} s"
        return f"hangs in a step for {self._step.seconds:.0f} s"

    @property
    def _stuck(self) -> float:
        return max(self._silent, self._step.idle, self._step.seconds / BUSY)
