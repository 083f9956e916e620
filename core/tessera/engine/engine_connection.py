"""One engine process from its start to its end, followed in an event loop: its messages, its progress, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from functools import partial

from tessera.engine.messages import (
    AbortRequests,
    AddRequests,
    Alive,
    EngineInfo,
    EngineReady,
    Report,
    Shutdown,
    Starting,
)
from tessera.engine.pulse import Watchdog
from tessera.engine.spawned_engine import SpawnedEngine
from tessera.errors import EngineDeadError, TesseraError
from tessera.platform.runner import Progress
from tessera.processes.error_message import ErrorMessage

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5.0  # that the engine has to shut down before it is killed
TURN_SECONDS = 0.005  # of handling messages before the loop may do something else
ROUNDS_BETWEEN_TURNS = 4  # of the loop: a request on a new connection is answered in the fifth
LAST_MESSAGES_SECONDS = 1.0  # to wait, after the process has ended, for messages it sent before
STACKS_SECONDS = 2.0  # that the process has to write its stacks
STACKS_INTERVAL = 0.1


class EngineConnection:
    """Receives the messages of one engine process and judges whether it hangs."""

    def __init__(
        self,
        spawned: SpawnedEngine,
        on_report: Callable[[Report], None],
        on_progress: Callable[[Progress], None],
        stall_seconds: float,
    ) -> None:
        self.watchdog = Watchdog(stall_seconds)
        # It will not end by itself.
        self.is_hung = False
        self._spawned = spawned
        self._on_report = on_report
        self._on_progress = on_progress
        self._ignores_messages = False
        self._next_turn: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        # How it ended, in words.
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._started: asyncio.Future[EngineInfo | TesseraError] = self._loop.create_future()
        self._loop.add_reader(spawned.descriptor, self._on_readable)
        spawned.on_exit(self._report_exit)

    @property
    def pid(self) -> int:
        return self._spawned.pid

    async def started(self) -> EngineInfo:
        """Returns when the engine is ready. Raises the error that ended its start: ConfigError, ModelError,
        PlatformError, MemoryBudgetError, or EngineDeadError if the process ended without one."""
        outcome = await asyncio.shield(self._started)  # a caller that is cancelled must not cancel the future
        if isinstance(outcome, TesseraError):
            raise outcome
        return outcome

    def check_hang(self) -> str | None:
        """How it hangs, in words; None if it does not. Call at least once per watchdog.interval."""
        self.watchdog.tick()
        self.is_hung = self.watchdog.hang is not None
        return f"The engine's process {self.watchdog.hang}." if self.is_hung else None

    def send(self, body: AddRequests | AbortRequests) -> None:
        self._spawned.send(body)

    async def stacks(self) -> str:
        """The stack traces of all threads of its processes, as far as they are written in time."""
        self._spawned.ask_for_stacks()
        text = ""
        for _ in range(round(STACKS_SECONDS / STACKS_INTERVAL)):
            await asyncio.sleep(STACKS_INTERVAL)
            before, text = text, self._spawned.read_stacks()
            if text and text == before:
                break
        return text

    async def shutdown(self) -> None:
        """Shuts the engine down; kills it if it has not started yet or takes too long. Leaves nothing behind."""
        try:
            if self._started.done() and not self.ended.done():
                self._spawned.send(Shutdown())
                await asyncio.wait((self.ended,), timeout=SHUTDOWN_SECONDS)
                if not self.ended.done():
                    log.warning("the engine did not shut down in time and is killed")
        finally:
            self.close()

    def close(self) -> None:
        """Kills the engine at once. Leaves no process, socket or directory behind. May be called again."""
        if not self._spawned.closed:
            self._loop.remove_reader(self._spawned.descriptor)
            self._spawned.close()

    def ignore_messages(self) -> None:
        """Ignores all further messages from the engine."""
        self._ignores_messages = True
        if not self._spawned.closed:
            self._loop.remove_reader(self._spawned.descriptor)

    # ---- from the engine ----------------------------------------------------

    def _on_readable(self) -> None:
        """More messages have arrived. If others still wait for their turn, these come with them."""
        if self._next_turn is None:
            self._receive()

    def _receive_after(self, rounds: int) -> None:
        """Goes on with the messages that have arrived after so many rounds of the loop."""
        again = partial(self._receive_after, rounds - 1) if rounds else self._receive
        self._next_turn = self._loop.call_soon(again)

    def _receive(self, seconds: float = TURN_SECONDS) -> None:
        """Handles the messages that have arrived, for so long that the loop can do something else in between. An error
        ends this engine, because requests could wait forever for what is lost."""
        self._next_turn = None
        if self._spawned.closed or self._ignores_messages:
            return
        end = time.monotonic() + seconds
        try:
            for answer in self._spawned.receive():
                self.watchdog.message_arrived(answer if isinstance(answer, Alive) else None)
                match answer:
                    case Report():
                        self._on_report(answer)
                    case Starting(phase, done, total):
                        self._on_progress(Progress(phase, done, total))
                    case EngineReady(info):
                        self._settle(info)
                    case ErrorMessage():
                        self._settle(answer.error())
                if time.monotonic() > end:
                    self._receive_after(ROUNDS_BETWEEN_TURNS)
                    break
        except Exception:
            log.exception("the front end failed to process a message from the engine")
            self._end("was given up because the front end failed to process its message; the log above says why")

    def _report_exit(self, code: int) -> None:
        """Called on the thread that waits for the process."""
        # If the loop is already closed, nobody needs the exit code.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int) -> None:
        self._receive(math.inf)
        if self._started.done():
            self._end(describe_exit(code))
        else:
            self._loop.call_later(LAST_MESSAGES_SECONDS, self._end, describe_exit(code))

    def _end(self, cause: str) -> None:
        if not self.ended.done():
            self.ended.set_result(f"The engine's process {cause}.")
            self._settle(EngineDeadError(self.ended.result()))

    def _settle(self, outcome: EngineInfo | TesseraError) -> None:
        if not self._started.done():
            self._started.set_result(outcome)


def describe_exit(exit_code: int) -> str:
    """How a process ended, in words for a user."""
    if exit_code == -9:
        return "was killed (signal 9); the system also does this when memory runs out"
    if exit_code < 0:
        return f"was terminated by signal {-exit_code}"
    return f"ended with exit code {exit_code}; the log above says why"
