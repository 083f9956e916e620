"""How much processor time a checkpoint's patterns may take: a pattern can take any time for a few characters, and the
process that reads answers serves all clients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

_MAX_SECONDS = 0.05
_PER_SEARCH = 200e-6
_PER_CHARACTER = 0.2e-6


class OutOfTime(Exception):  # noqa: N818 - ends the reading by patterns, and is never shown
    """The patterns took longer than they may."""


class Budget:
    """Of one answer: 50 ms at once, which each search refills by several times what an ordinary one needs. So all
    searches take at most a time in proportion to their number. The clock is the process's, as that of the `regex`
    library's own limit is."""

    def __init__(self) -> None:
        self._seconds = _MAX_SECONDS

    def search(self, pattern: Any, text: str, begin: int, end: int, *, partial: bool) -> Any:
        """A match, or None. Raises OutOfTime."""
        return self._timed(lambda seconds: pattern.search(text, begin, end, partial=partial, timeout=seconds), 0.0)

    def all(self, pattern: Any, text: str) -> list[Any]:
        """All matches. Raises OutOfTime."""
        refill = _PER_CHARACTER * len(text)
        found: list[Any] = self._timed(lambda seconds: list(pattern.finditer(text, timeout=seconds)), refill)
        return found

    def _timed(self, run: Callable[[float], Any], refill: float) -> Any:
        self._seconds = min(self._seconds + _PER_SEARCH, _MAX_SECONDS) + refill
        if self._seconds <= 0:
            raise OutOfTime
        began = time.process_time()
        try:
            return run(self._seconds)
        except TimeoutError:
            self._seconds = -math.inf
            raise OutOfTime from None
        finally:
            self._seconds -= time.process_time() - began
