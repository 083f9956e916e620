"""For which devices kernels are compiled on a day."""

from __future__ import annotations

from datetime import date, timedelta

from tools.triton_targets import TARGETS, turn


def test_three_days_compile_for_each_device_once() -> None:
    names = list(TARGETS)
    for begin in (date(2026, 11, 28), date(2027, 2, 27)):
        days = [turn(names, begin + timedelta(days=number)) for number in range(3)]
        assert sorted(name for day in days for name in day) == sorted(names)
        assert max(map(len, days)) - min(map(len, days)) <= 1
