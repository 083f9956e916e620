"""Tells a long step from a process that hangs: Pulse sends signs of life from a thread in the engine's process, and
Watchdog judges them in the parent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import zmq

from tessera.config.engine import BUSY
from tessera.engine.messages import Alive, Codec
from tessera.processes.processor_time import processor_seconds_with_children

BEAT = 0.5  # seconds
WORKING = 0.01  # of one processor; a process that uses less is only waiting


class Pulse(threading.Thread):
    """Sends at each beat how long the current step has run, and for how long it has used no processor time."""

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
        used = processor_seconds_with_children()
        with self._context.socket(zmq.PUSH) as socket:
            socket.set_hwm(0)
            socket.linger = 0
            socket.connect(self._address)
            while not self._stopped.wait(BEAT):
                now, before = time.monotonic(), used
                used = processor_seconds_with_children()
                if used - before >= WORKING * BEAT:
                    worked = now
                began = self._step_began
                alive = Alive() if began is None else Alive(now - began, now - max(began, worked))
                socket.send(self._codec.pack_answer(alive))


TICKS = 8  # per limit


class Watchdog:
    """Judges from an engine's signs of life whether it hangs. tick() lets time pass.

    limit: seconds that an engine may be silent, or that a step may use no processor time. A step may take BUSY times as
    long in total.
    """

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval = min(1.0, limit / TICKS)
        self._limit = limit
        self._clock = clock
        self._last = clock()
        self._silent = 0.0
        self._step = Alive()

    def message_arrived(self, step: Alive | None = None) -> None:
        """A message arrived. step: the Alive message; None for any other, which means that no step is running."""
        self._silent = 0.0
        self._last = self._clock()
        self._step = step or Alive()

    def tick(self) -> None:
        """Call at least once per `interval`. A late tick counts at most two intervals: the caller itself was held up,
        and messages may be waiting to be read."""
        now = self._clock()
        self._silent += min(now - self._last, 2 * self.interval)
        self._last = now

    @property
    def silent(self) -> float:
        """Seconds since the last sign of life."""
        return self._silent

    @property
    def stalled(self) -> bool:
        """Whether more than half of the limit has passed."""
        return self._stuck > self._limit / 2

    @property
    def hang(self) -> str | None:
        """How it hangs, in words; None if it does not."""
        if self._stuck <= self._limit:
            return None
        if self._silent > self._limit:
            return f"gave no sign of life for {self._silent:.0f} s"
        return f"has hung in a step for {self._step.seconds:.0f} s"

    @property
    def _stuck(self) -> float:
        return max(self._silent, self._step.idle, self._step.seconds / BUSY)
