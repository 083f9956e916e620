"""Watches the server's own event loop: says what held it up, and ends the process if it hangs for good."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator

_LOG = logging.getLogger(__name__)
LIMIT = 1.0
"""Seconds that the loop may stand."""
STANDARD_ERROR = 2  # by number: sys.stderr is None where it was closed
TICKS = 4
"""Ticks of the loop per limit."""


class LoopWatch:
    """Logs, once each time, what the loop is running when it has stood for longer than `limit` seconds. stands: how
    often it has. `start` is called on the loop; a thread does the rest, and needs the interpreter's lock."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.stands = 0
        self._limit = limit
        self._stopped = threading.Event()
        self._last = 0.0
        self._thread_id = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._thread_id = threading.get_ident()
        self._tick()
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()

    async def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._last = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(self._limit / TICKS, self._tick)

    def _watch(self) -> None:
        said = 0.0
        woke = time.monotonic()
        while not self._stopped.wait(self._limit / TICKS):
            before, woke = woke, time.monotonic()
            if woke - before > self._limit:  # the whole process was held up: stopped, or the machine is busy
                continue
            last = self._last
            if woke - last > self._limit and last != said:
                said = last
                self._say(woke - last)

    def _say(self, seconds: float) -> None:
        self.stands += 1
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented in spite of its name
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "It has ended.\n"
        _LOG.warning("The event loop has answered nobody for %.1f s. It is running:\n%s", seconds, stack.rstrip())


@contextlib.contextmanager
def ended_if_it_hangs(seconds: float) -> Iterator[None]:
    """Ends the process, after writing the stacks of all threads to standard error, if the running loop stands for that
    long. Works even while something holds the interpreter's lock. A service manager starts the server again."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal timer
        faulthandler.dump_traceback_later(seconds, exit=True, file=STANDARD_ERROR)
        timer = loop.call_later(seconds / TICKS, tick)

    tick()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        if timer is not None:
            timer.cancel()
