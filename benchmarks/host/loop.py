"""The host's yardstick: a fixed loop of plain Python, timed in the same minute as the figures next to it."""

from __future__ import annotations

import time

ROUNDS = 10_000


def run_loop() -> int:
    """Additions, remainders and dictionary entries. Never change it, or records can no longer be compared."""
    held: dict[int, int] = {}
    total = 0
    for number in range(ROUNDS):
        total = (total * 31 + number) % 1_000_003
        held[number & 255] = total
    return total


def loop_us(times: int = 25) -> float:
    """The median time of `times` loops in microseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        run_loop()
        took.append(time.perf_counter() - began)
    return sorted(took)[times // 2] * 1e6
