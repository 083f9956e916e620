"""Keeps an engine running: replaces one that dies or hangs, unless that happens too often."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from tessera.config import Supervision
from tessera.engine.engine_connection import EngineConnection
from tessera.engine.messages import EngineInfo
from tessera.errors import EngineDeadError, TesseraError

log = logging.getLogger(__name__)

SLOWER_START = 3  # a restart hangs if it takes longer than this many times the first start
START_SECONDS = 60.0  # plus these seconds


class RestartBudget:
    """How often an engine may be restarted: after `max_restarts` crashes within `window` seconds."""

    def __init__(self, max_restarts: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_restarts = max_restarts
        self._window = window
        self._clock = clock
        # Of the crashes within the window, in seconds of the clock.
        self._times: list[float] = []

    def count_crash(self) -> bool:
        """Returns whether the engine may be restarted."""
        now = self._clock()
        self._times = [*(at for at in self._times if now - at < self._window), now]
        return len(self._times) <= self._max_restarts

    def reset(self) -> None:
        """One request was to blame for the crashes so far, and has ended: none of them counts any more."""
        self._times = []

    @property
    def num_crashes(self) -> int:
        return len(self._times)


@dataclass(frozen=True)
class SupervisorCallbacks:
    """What the supervisor calls."""

    # The engine ended and may be replaced. Takes the cause, in words. Returns whether a request was to blame that has
    # ended now, so that the death does not count.
    on_death: Callable[[str], bool]
    # Another engine is ready.
    on_restart: Callable[[EngineInfo], None]
    # There will be no other engine. Takes the cause, in words.
    on_end: Callable[[str], None]


class Supervisor:
    """Starts an engine and restarts it as long as it may be."""

    def __init__(
        self,
        connect: Callable[[int], EngineConnection],
        callbacks: SupervisorCallbacks,
        supervision: Supervision,
        epoch: int,
    ) -> None:
        """connect: starts the engine process of an epoch. epoch: of the first one."""
        # Set once there will be no other engine.
        self.ended = asyncio.Event()
        # To the present engine, or the last one.
        self.connection: EngineConnection
        self._connect = connect
        self._callbacks = callbacks
        self._budget = RestartBudget(supervision.max_restarts, supervision.window)
        self._window = supervision.window
        self._epoch = epoch
        self._first_start_seconds = 0.0
        # Seconds on time.monotonic().
        self._died_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        """Starts the first engine and returns when it is ready. Raises the errors of EngineConnection.started()."""
        began = time.monotonic()
        self.connection = self._connect(self._epoch)
        try:
            info = await self.connection.started()
        except BaseException:
            self.connection.close()
            raise
        self._first_start_seconds = time.monotonic() - began
        self._task = asyncio.create_task(self._supervise(), name="supervisor")
        return info

    async def stop(self) -> None:
        """Ends the engine, whether it is running or starting. May be called again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self.connection.shutdown()

    async def resume(self) -> EngineInfo:
        """Starts another engine after stop() and returns when it is ready. If there is none, it may be called again.
        Raises the errors of EngineConnection.started(), and OSError."""
        self._epoch += 1
        self.connection = self._connect(self._epoch)
        try:
            info = await self._wait_for_start(self.connection)
        except BaseException:
            self.connection.close()
            raise
        self._task = asyncio.create_task(self._supervise(), name="supervisor")
        return info

    async def _supervise(self) -> None:
        try:
            cause = await self._wait_for_end(self.connection)
            while await self._may_restart_after(cause):
                cause = await self._restart()
            times = "once" if self._budget.num_crashes == 1 else f"{self._budget.num_crashes} times"
            self._give_up(f"The engine died {times} within {self._window:.0f} s. {cause}")
        except Exception:
            log.exception("the supervisor failed")
            self._give_up("The engine is no longer supervised; the log above says why.")

    async def _may_restart_after(self, cause: str) -> bool:
        """Cleans up after an engine that died or hangs; if it hangs, logs its stacks first. Returns whether another may
        be started."""
        connection, self._died_at = self.connection, time.monotonic()
        log.error("engine process %d: %s", connection.pid, cause)
        is_explained = self._callbacks.on_death(cause)
        connection.ignore_messages()
        if connection.is_hung:
            stacks = await connection.stacks()
            log.error("stacks of engine process %d\n%s", connection.pid, stacks or "it wrote none in time")
        connection.close()
        if is_explained:
            self._budget.reset()
        return is_explained or self._budget.count_crash()

    async def _restart(self) -> str:
        """Starts another engine and waits for its end. Returns how it ended, in words."""
        self._epoch += 1
        try:
            self.connection = self._connect(self._epoch)
            info = await self._wait_for_start(self.connection)
        except TesseraError as error:
            return error.message
        except OSError as error:
            return f"No process could be started ({error.strerror})."
        seconds = time.monotonic() - self._died_at
        log.warning("engine process %d took over after %.1f s", self.connection.pid, seconds)
        self._callbacks.on_restart(info)
        return await self._wait_for_end(self.connection)

    async def _wait_for_end(self, connection: EngineConnection) -> str:
        """Waits until the engine ends or hangs. Returns how, in words."""
        while not connection.ended.done():
            await asyncio.wait((connection.ended,), timeout=connection.watchdog.interval)
            if (hang := connection.check_hang()) is not None:
                return hang
        return connection.ended.result()

    async def _wait_for_start(self, connection: EngineConnection) -> EngineInfo:
        """Waits for a restarted engine to be ready. Raises the TesseraError that ended its start, or EngineDeadError if
        it takes too long. The watchdog is not used, because imports and reads may hold the interpreter lock for
        long."""
        seconds = SLOWER_START * self._first_start_seconds + START_SECONDS
        try:
            return await asyncio.wait_for(connection.started(), seconds)
        except TimeoutError:
            connection.is_hung = True
            raise EngineDeadError(f"The engine process did not start within {seconds:.0f} s.") from None

    def _give_up(self, cause: str) -> None:
        self._callbacks.on_end(cause)
        self.ended.set()
