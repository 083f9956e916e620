"""How long two calls take on one device, measured in turn so that both see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tessera.platform.device import Device

MARGIN = 0.15
"""By how much a median of this measurement is off on a machine that others use too: less is not slower."""
INSTANT = 2e-6
"""Seconds that merely calling something may take more or less."""
REPEATS = 3
"""Measurements that must all say slower before it is called so."""

_RUNS, _RUNS_OF_LONG = 7, 3
_LONG = 0.03  # seconds of a call
_SHORTEST = 0.002  # seconds of a run, of as many calls as that takes
_MOST_CALLS = 200

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Of an op at so many tokens: seconds of a call, native and the reference on the same device."""

    op: str
    dtype: str
    tokens: int
    native: float
    reference: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the reference."""
        return self.reference / self.native

    @property
    def slower(self) -> bool:
        """Than the reference, by more than the measurement is off."""
        return self.native > (1 + MARGIN) * self.reference + INSTANT


def seconds(device: Device, calls: Sequence[Call]) -> list[float]:
    """Of each, the median of several runs after a warm-up, taken in turn."""
    numbers = [_warmed(device, call) for call in calls]
    taken: list[list[float]] = [[] for _ in calls]
    while len(taken[0]) < (_RUNS_OF_LONG if taken[0] and taken[0][0] > _LONG else _RUNS):
        for call, number, times in zip(calls, numbers, taken, strict=True):
            times.append(_run(device, call, number) / number)
    return [statistics.median(times) for times in taken]


@torch.inference_mode()
def _run(device: Device, call: Call, number: int) -> float:
    device.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        call()
    device.synchronize()
    return time.perf_counter() - start


def _warmed(device: Device, call: Call) -> int:
    """How many calls a run takes."""
    _run(device, call, 1)
    once = max(_run(device, call, 1), 1e-7)
    return max(1, min(_MOST_CALLS, int(_SHORTEST / once)))
