"""One engine process in an event loop, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from tessera.engine.messages import (
    AbortRequests,
    AddRequests,
    Alive,
    EngineInfo,
    Failure,
    Ready,
    Report,
    Shutdown,
    Starting,
)
from tessera.engine.spawn import SpawnedEngine, cause_of
from tessera.engine.watchdog import Watchdog
from tessera.errors import EngineDeadError, TesseraError
from tessera.platform.runner import Progress

log = logging.getLogger(__name__)

SHUTDOWN = 5.0  # seconds the engine has to end in order
LAST_WORDS = 1.0  # seconds that what a process said before it ended may be on its way
STACKS = 2.0  # seconds it has to write its stacks
STACKS_LOOK = 0.1


class EngineLife:
    """hear: gets what the engine says about requests. ended: how it ended, in words. hangs: it will not end by
    itself."""

    def __init__(
        self,
        spawned: SpawnedEngine,
        hear: Callable[[Report], None],
        on_progress: Callable[[Progress], None],
        stall_seconds: float,
    ) -> None:
        self.hangs = False
        self.watchdog = Watchdog(stall_seconds)
        self._spawned = spawned
        self._hear = hear
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._started: asyncio.Future[EngineInfo | TesseraError] = self._loop.create_future()
        self._loop.add_reader(spawned.descriptor, self._receive)
        spawned.on_exit(self._tell_exit)

    @property
    def pid(self) -> int:
        return self._spawned.pid

    async def started(self) -> EngineInfo:
        """When it is ready. Raises what ended its start: ConfigError, ModelError, PlatformError, MemoryBudgetError,
        EngineDeadError where the process just ended."""
        outcome = await asyncio.shield(self._started)  # whoever gives up waiting does not end it
        if isinstance(outcome, TesseraError):
            raise outcome
        return outcome

    def hang(self) -> str | None:
        """To be asked at least each watchdog.interval: how it hangs, in words."""
        self.watchdog.tick()
        self.hangs = self.watchdog.hang is not None
        return f"The engine's process {self.watchdog.hang}." if self.hangs else None

    def send(self, body: AddRequests | AbortRequests) -> None:
        self._spawned.send(body)

    async def stacks(self) -> str:
        """What each thread of its processes does, as far as they say so in time."""
        self._spawned.ask_for_stacks()
        text = ""
        for _ in range(round(STACKS / STACKS_LOOK)):
            await asyncio.sleep(STACKS_LOOK)
            before, text = text, self._spawned.read_stacks()
            if text and text == before:
                break
        return text

    async def shutdown(self) -> None:
        """Ends it in order where it has come so far, and leaves nothing."""
        try:
            if self._started.done() and not self.ended.done():
                self._spawned.send(Shutdown())
                await asyncio.wait((self.ended,), timeout=SHUTDOWN)
                if not self.ended.done():
                    log.warning("the engine did not end in order and is killed")
        finally:
            self.close()

    def close(self) -> None:
        """Ends it at once; nothing of it is left: no process, no socket, no directory. May be called again."""
        if not self._spawned.closed:
            self._loop.remove_reader(self._spawned.descriptor)
            self._spawned.close()

    def deafen(self) -> None:
        """What it still says is not heard."""
        if not self._spawned.closed:
            self._loop.remove_reader(self._spawned.descriptor)

    # ---- from the engine ----------------------------------------------------

    def _receive(self) -> None:
        """What has arrived. Requests would wait for ever after an error here, so it is the end of this engine."""
        try:
            for answer in self._spawned.receive():
                self.watchdog.heard(answer if isinstance(answer, Alive) else None)
                match answer:
                    case Report():
                        self._hear(answer)
                    case Starting(phase, done, total):
                        self._on_progress(Progress(phase, done, total))
                    case Ready(info):
                        self._settle(info)
                    case Failure():
                        self._settle(answer.error())
        except Exception:
            log.exception("the front end failed on what the engine said")
            self._end("was given up, since the front end failed on what it said; the log above says why")

    def _tell_exit(self, code: int) -> None:
        """On the thread that waits for the process."""
        # The loop may be closed by now, and then nobody wants to know.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int) -> None:
        if not self._spawned.closed:
            self._receive()
        if self._started.done():
            self._end(cause_of(code))
        else:
            self._loop.call_later(LAST_WORDS, self._end, cause_of(code))

    def _end(self, cause: str) -> None:
        if not self.ended.done():
            self.ended.set_result(f"The engine's process {cause}.")
            self._settle(EngineDeadError(self.ended.result()))

    def _settle(self, outcome: EngineInfo | TesseraError) -> None:
        if not self._started.done():
            self._started.set_result(outcome)
