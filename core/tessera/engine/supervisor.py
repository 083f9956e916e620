"""Keeps an engine running: where one dies or hangs the next begins, unless too many did."""

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

SLOWER_START = 3  # times as long as the first start, and
START_SECONDS = 60.0  # more, before a restart counts as hanging


class Deaths:
    """Counts them; at most `most` may happen within `window` seconds."""

    def __init__(self, most: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._window = window
        self._clock = clock
        self._times: list[float] = []

    def another(self) -> bool:
        """Whether that one may still be followed by a restart."""
        now = self._clock()
        self._times = [*(at for at in self._times if now - at < self._window), now]
        return len(self._times) <= self._most

    @property
    def recent(self) -> int:
        return len(self._times)


@dataclass(frozen=True)
class Charge:
    """Who works with the engine that is kept running, and hears: lost(cause), none runs and another may come; found,
    another runs; given_up(cause), no other comes."""

    lost: Callable[[str], None]
    found: Callable[[EngineInfo], None]
    given_up: Callable[[str], None]


class Supervisor:
    """begin: starts the engine process of an epoch. over: is set once no other engine comes."""

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
        """The first engine; what its start raises is raised."""
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
        """Ends the engine that runs or starts. May be called again."""
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
            self._give_up("The engine is not watched over any more; the log above says why.")

    async def _bury(self, cause: str) -> bool:
        """Nothing is left of an engine that died or hangs; of one that hangs the log shows where. Whether another may
        come."""
        life, self._lost_at = self.life, time.monotonic()
        log.error("engine process %d: %s", life.pid, cause)
        self._charge.lost(cause)
        life.deafen()
        if life.hangs:
            log.error("stacks of engine process %d\n%s", life.pid, await life.stacks() or "it wrote none in time")
        life.close()
        return self._deaths.another()

    async def _another(self) -> str:
        """An engine from its start to its end; how it ended."""
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
        """Watches it; how it ended."""
        while not life.ended.done():
            await asyncio.wait((life.ended,), timeout=life.watchdog.interval)
            if (hang := life.hang()) is not None:
                return hang
        return life.ended.result()

    async def _started(self, life: EngineLife) -> EngineInfo:
        """Raises TesseraError: what ended the start, or that it hangs. Signs of life are not asked for: what a start
        imports and reads may hold the interpreter for long."""
        seconds = SLOWER_START * self._first_start + START_SECONDS
        try:
            return await asyncio.wait_for(life.started(), seconds)
        except TimeoutError:
            life.hangs = True
            raise EngineDeadError(f"The engine process did not start within {seconds:.0f} s.") from None

    def _give_up(self, cause: str) -> None:
        self._charge.given_up(cause)
        self.over.set()
