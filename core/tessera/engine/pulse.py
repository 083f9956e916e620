"""The engine's signs of life, from a thread of their own, which tell a long step from a process that hangs; and who
judges by them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from tessera.engine.messages import Alive, Codec

BEAT = 0.5  # seconds
WORKING = 0.01  # of a processor: less is waiting
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Pulse(threading.Thread):
    """Each beat: for how long the present step has run, and for how long it has used no processor time."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, epoch: int) -> None:
        super().__init__(name="pulse", daemon=True)
        self._context = context
        self._address = address
        self._codec = Codec(epoch)
        self._stopped = threading.Event()
        self._step_began: float | None = None

    def step_begins(self) -> None:
        self._step_began = time.monotonic()

    def step_ends(self) -> None:
        self._step_began = None

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        worked = time.monotonic()
        used = processor_seconds()
        with self._context.socket(zmq.PUSH) as socket:
            socket.set_hwm(0)
            socket.linger = 0
            socket.connect(self._address)
            while not self._stopped.wait(BEAT):
                now, before = time.monotonic(), used
                used = processor_seconds()
                if used - before >= WORKING * BEAT:
                    worked = now
                began = self._step_began
                alive = Alive() if began is None else Alive(now - began, now - max(began, worked))
                socket.send(self._codec.pack_answer(alive))


def processor_seconds() -> float:
    """Of this process, and of its workers where the system says so."""
    return time.process_time() + sum(map(_seconds_of, _children()))


def _children() -> list[str]:
    try:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    except OSError:
        return []


def _seconds_of(pid: str) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    # Behind the name, which may hold anything: the fields from the third on; user and system time are 14 and 15.
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_A_SECOND


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
