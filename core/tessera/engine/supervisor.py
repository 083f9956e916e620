"""Keeps an engine running: replaces one that dies or hangs, unless that happens too often."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from tessera.config import Supervision
from tessera.engine.messages import EngineInfo
from tessera.engine.spawn import EngineLife
from tessera.errors import EngineDeadError, TesseraError

log = logging.getLogger(__name__)

SLOWER_START = 3  # a restart hangs if it takes longer than this many times the first start
START_SECONDS = 60.0  # plus these seconds


class Deaths:
    """Counts the deaths of engines. At most `most` within `window` seconds are followed by a restart."""

    def __init__(self, most: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._window = window
        self._clock = clock
        self._times: list[float] = []

    def another(self) -> bool:
        """Counts a death. Returns whether the engine may be restarted."""
        now = self._clock()
        self._times = [*(at for at in self._times if now - at < self._window), now]
        return len(self._times) <= self._most

    def explain(self) -> None:
        """One request was to blame for the deaths so far, and has ended: none of them counts any more."""
        self._times = []

    @property
    def recent(self) -> int:
        return len(self._times)


@dataclass(frozen=True)
class Charge:
    """What the supervisor calls. lost(cause): the engine ended and may be replaced; returns whether a request was to
    blame that has ended now, so that the death does not count. found(info): another engine is ready. given_up(cause):
    there will be no other engine."""

    lost: Callable[[str], bool]
    found: Callable[[EngineInfo], None]
    given_up: Callable[[str], None]


class Supervisor:
    """Starts an engine and restarts it as long as it may be. begin: starts the engine process of an epoch. over: set
    once there will be no other engine."""

    def __init__(
        self, begin: Callable[[int], EngineLife], charge: Charge, supervision: Supervision, epoch: int
    ) -> None:
        self.over = asyncio.Event()
        self.life: EngineLife
        self._begin = begin
        self._charge = charge
        self._deaths = Deaths(supervision.max_restarts, supervision.window)
        self._window = supervision.window
        self._epoch = epoch
        self._first_start = 0.0
        self._lost_at = 0.0
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        """Starts the first engine and returns when it is ready. Raises the errors of EngineLife.started()."""
        began = time.monotonic()
        self.life = self._begin(self._epoch)
        try:
            info = await self.life.started()
        except BaseException:
            self.life.close()
            raise
        self._first_start = time.monotonic() - began
        self._keeping = asyncio.create_task(self._keep(), name="supervisor")
        return info

    async def stop(self) -> None:
        """Ends the engine, whether it is running or starting. May be called again."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
        await self.life.shutdown()

    async def _keep(self) -> None:
        try:
            cause = await self._end_of(self.life)
            while await self._bury(cause):
                cause = await self._another()
            times = "once" if self._deaths.recent == 1 else f"{self._deaths.recent} times"
            self._give_up(f"The engine died {times} within {self._window:.0f} s. {cause}")
        except Exception:
            log.exception("the supervisor failed")
            self._give_up("The engine is no longer supervised; the log above says why.")

    async def _bury(self, cause: str) -> bool:
        """Cleans up after an engine that died or hangs; if it hangs, logs its stacks first. Returns whether another may
        be started."""
        life, self._lost_at = self.life, time.monotonic()
        log.error("engine process %d: %s", life.pid, cause)
        explained = self._charge.lost(cause)
        life.deafen()
        if life.hangs:
            log.error("stacks of engine process %d\n%s", life.pid, await life.stacks() or "it wrote none in time")
        life.close()
        if explained:
            self._deaths.explain()
        return explained or self._deaths.another()

    async def _another(self) -> str:
        """Starts another engine and waits for its end. Returns how it ended, in words."""
        self._epoch += 1
        try:
            self.life = self._begin(self._epoch)
            info = await self._started(self.life)
        except TesseraError as error:
            return error.message
        except OSError as error:
            return f"No process could be started ({error.strerror})."
        seconds = time.monotonic() - self._lost_at
        log.warning("engine process %d took over after %.1f s", self.life.pid, seconds)
        self._charge.found(info)
        return await self._end_of(self.life)

    async def _end_of(self, life: EngineLife) -> str:
        """Waits until the engine ends or hangs. Returns how, in words."""
        while not life.ended.done():
            await asyncio.wait((life.ended,), timeout=life.watchdog.interval)
            if (hang := life.hang()) is not None:
                return hang
        return life.ended.result()

    async def _started(self, life: EngineLife) -> EngineInfo:
        """Waits for a restarted engine to be ready. Raises the TesseraError that ended its start, or EngineDeadError if
        it takes too long. The watchdog is not used, because imports and reads may hold the interpreter lock for
        long."""
        seconds = SLOWER_START * self._first_start + START_SECONDS
        try:
            return await asyncio.wait_for(life.started(), seconds)
        except TimeoutError:
            life.hangs = True
            raise EngineDeadError(f"The engine process did not start within {seconds:.0f} s.") from None

    def _give_up(self, cause: str) -> None:
        self._charge.given_up(cause)
        self.over.set()
