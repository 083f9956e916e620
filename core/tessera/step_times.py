"""How long steps take, by their number of tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tessera.arrays import Array


def believed(before: float, seconds: float) -> float:
    """What a time is taken for that was taken for `before` and is now measured. What is faster is believed at once, and
    what is slower, which other load on the machine may explain, by a tenth."""
    return min(seconds, before + 0.1 * (min(seconds, 2 * before) - before))


class StepTimes:
    """Seconds of a step by its number of tokens, as believed() of what was measured. Between two numbers that were
    measured the time is interpolated; beyond the largest it counts as constant, so what is unknown is tried."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._times: Counter[int] = Counter()
        self._curve: tuple[Array, Array] | None = None

    def add(self, num_tokens: int, seconds: float) -> None:
        place = self._place(num_tokens)
        self._seconds[place] = believed(self._seconds.get(place, seconds), seconds)
        self._times[place] += 1
        self._curve = None

    def knows(self, num_tokens: int) -> bool:
        """Whether about so many tokens were measured more than once: the first time may include what is done once."""
        return self._times[self._place(num_tokens)] > 1

    def seconds(self, num_tokens: Array) -> Array:
        """[n] seconds. Something must have been measured."""
        if self._curve is None:
            numbers = sorted(self._seconds)
            self._curve = np.array(numbers, float), np.array([self._seconds[number] for number in numbers])
        times: Array = np.interp(num_tokens, *self._curve)
        return times

    @staticmethod
    def _place(num_tokens: int) -> int:
        """Numbers above 32 in steps of an eighth of their size, so that few are kept."""
        grain = 1 << max(num_tokens.bit_length() - 4, 0) if num_tokens > 32 else 1
        return num_tokens // grain * grain
