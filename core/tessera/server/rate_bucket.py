"""A rate, as a token bucket (Turner, New Directions in Communications, 1986): a minute's worth may come at once, and
what was taken comes back evenly."""

from __future__ import annotations

import time
from collections.abc import Callable

_MINUTE = 60.0
_ROUNDING = 1e-6


class RateBucket:
    """Units that may be taken at `limit` a minute. It may be overdrawn, by what turns out only when it has been used;
    then nothing is let in until that has come back."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._level = float(limit)
        self._at = clock()

    def change_limit(self, limit: int) -> None:
        """What has been taken so far stays taken."""
        self._level = min(self._level_now() + limit - self.limit, limit)
        self.limit = limit

    def take(self, amount: int) -> None:
        self._level = self._level_now() - amount

    def seconds_until(self, amount: int) -> float:
        """Until `amount` may be taken; 0 if it may be now. More than the bucket holds may be taken when it is full."""
        return self._seconds(min(amount, self.limit))

    @property
    def remaining(self) -> int:
        return max(int(self._level_now()), 0)

    @property
    def seconds_until_full(self) -> float:
        return self._seconds(self.limit)

    def _seconds(self, level: float) -> float:
        lacking = level - self._level_now()
        return lacking * _MINUTE / self.limit if lacking > _ROUNDING else 0.0

    def _level_now(self) -> float:
        now = self._clock()
        self._level = min(self._level + (now - self._at) * self.limit / _MINUTE, self.limit)
        self._at = now
        return self._level
