"""When an engine counts as stalled, and when as hanging, by a clock that the test moves."""

from __future__ import annotations

import pytest

from tessera.config.engine import BUSY
from tessera.engine.messages import Alive
from tessera.engine.pulse import Watchdog


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def watched(limit=8.0):
    clock = Clock()
    return Watchdog(limit, clock), clock


def pass_time(watchdog, clock, seconds):
    for _ in range(round(seconds / watchdog.interval)):
        clock.now += watchdog.interval
        watchdog.tick()


def test_silence_is_a_stall_at_half_and_a_hang_at_the_whole_of_the_limit():
    watchdog, clock = watched()
    pass_time(watchdog, clock, 4.0)
    assert not watchdog.stalled
    pass_time(watchdog, clock, 1.0)
    assert watchdog.stalled
    assert watchdog.hang is None
    pass_time(watchdog, clock, 4.0)
    assert watchdog.hang == "gave no sign of life for 9 s"


def test_any_word_ends_the_silence():
    watchdog, clock = watched()
    for _ in range(5):
        pass_time(watchdog, clock, 7.0)
        watchdog.message_arrived()
    assert watchdog.silent == 0.0
    assert watchdog.hang is None


def test_a_step_that_idles_hangs_though_the_process_lives():
    watchdog, _ = watched()
    watchdog.message_arrived(Alive(seconds=7.0, idle=7.0))
    assert watchdog.stalled
    assert watchdog.hang is None
    watchdog.message_arrived(Alive(seconds=8.5, idle=8.5))
    assert watchdog.hang == "has hung in a step for 8 s"
    watchdog.message_arrived()
    assert not watchdog.stalled


@pytest.mark.parametrize(("seconds", "hangs"), [(8.0 * BUSY - 1, False), (8.0 * BUSY + 1, True)])
def test_a_step_that_computes_may_take_longer(seconds, hangs):
    watchdog, _ = watched()
    watchdog.message_arrived(Alive(seconds, idle=0.0))
    assert (watchdog.hang is not None) == hangs


def test_a_front_end_that_was_stopped_itself_does_not_blame_the_engine():
    watchdog, clock = watched()
    clock.now += 3600.0
    watchdog.tick()
    assert watchdog.silent == 2 * watchdog.interval
    assert not watchdog.stalled
