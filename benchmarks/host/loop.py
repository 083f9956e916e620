"""The yardstick of the host: a fixed loop of plain Python, timed in the same minute as what stands beside it."""

from __future__ import annotations

import time

ROUNDS = 10_000


def run_loop() -> int:
    """Additions, remainders and a dictionary's entries; never to be changed, or records cannot be compared."""
    held: dict[int, int] = {}
    total = 0
    for number in range(ROUNDS):
        total = (total * 31 + number) % 1_000_003
        held[number & 255] = total
    return total


def loop_us(times: int = 25) -> float:
    """Microseconds of the loop, the median of so many."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        run_loop()
        took.append(time.perf_counter() - began)
    return sorted(took)[times // 2] * 1e6
