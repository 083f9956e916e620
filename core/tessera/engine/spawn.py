"""The parent's side of an engine process: starts it, exchanges messages with it, watches it from an event loop, and
cleans up after it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import zmq

from tessera import stacks
from tessera.config import EngineConfig
from tessera.engine.child import EngineChild
from tessera.engine.messages import (
    MAX_MESSAGE_BYTES,
    AbortRequests,
    AddRequests,
    Alive,
    Answer,
    Codec,
    EngineInfo,
    Ready,
    Report,
    Shutdown,
    Starting,
    StartUp,
)
from tessera.engine.process import pack_start
from tessera.engine.pulse import Watchdog
from tessera.errors import EngineDeadError, TesseraError
from tessera.platform.runner import Progress
from tessera.processes.error_message import ErrorMessage

log = logging.getLogger(__name__)

RECONNECT = 20  # milliseconds
LONGEST_ADDRESS = 90  # characters; the path of a Unix socket may have about a hundred


class SpawnedEngine:
    """A running `python -m tessera.engine` and the two sockets to it. Not thread-safe."""

    def __init__(self, config: EngineConfig, executor: str, epoch: int, child: EngineChild | None = None) -> None:
        """executor: dotted path. child: the process, if it is already running. Raises OSError."""
        self._codec = Codec(epoch)
        with ExitStack() as undo:
            directory = self._directory = _private_directory()
            undo.callback(shutil.rmtree, directory, ignore_errors=True)
            context = undo.enter_context(zmq.Context(io_threads=1))
            self._requests = undo.enter_context(context.socket(zmq.PUSH))
            self._answers = undo.enter_context(context.socket(zmq.PULL))
            start = StartUp(
                config=dataclasses.replace(config, folder=str(directory)),
                executor=executor,
                epoch=epoch,
                requests=f"ipc://{directory / 'requests'}",
                answers=f"ipc://{directory / 'answers'}",
                log_level=logging.getLogger("tessera").getEffectiveLevel(),
            )
            for socket in (self._requests, self._answers):
                socket.set_hwm(0)
                socket.linger = 0
                socket.maxmsgsize = MAX_MESSAGE_BYTES
            # The engine's process binds this socket: the side that connects may send before the other side exists.
            self._requests.reconnect_ivl = RECONNECT
            self._requests.connect(start.requests)
            self._answers.bind(start.answers)
            self._child = child or EngineChild(executor)
            undo.callback(self._child.end)
            self._child.configure(pack_start(start))
            # Runs when this process exits at the latest, so nothing is left behind.
            self._cleanup = weakref.finalize(self, undo.pop_all().close)
        log.info("engine process pid %d", self.pid)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def descriptor(self) -> int:
        """A file descriptor that becomes readable when messages may have arrived. Read all of them then; it does not
        become readable again before that."""
        return int(self._answers.getsockopt(zmq.FD))

    def send(self, body: AddRequests | AbortRequests | Shutdown) -> None:
        """Sends without waiting, and without an error if the process has ended; on_exit() reports that. Requests that
        are too large for one message are sent as several."""
        data = self._codec.pack_request(body)
        if len(data) > MAX_MESSAGE_BYTES and isinstance(body, AddRequests) and len(body.requests) > 1:
            middle = len(body.requests) // 2
            for some in (body.requests[:middle], body.requests[middle:]):
                self.send(AddRequests(some, body.replayed))
        else:
            self._requests.send(data, zmq.DONTWAIT)

    def receive(self) -> Iterator[Answer]:
        """The messages that have arrived."""
        while (data := self._next()) is not None:
            answer = self._codec.unpack_answer(data)
            if answer is not None:
                yield answer

    def on_exit(self, tell: Callable[[int], None]) -> None:
        """Calls tell(exit code) on a separate thread as soon as the process has ended."""
        wait = self._child.wait
        threading.Thread(target=lambda: tell(wait()), name=f"engine-{self.pid}", daemon=True).start()

    def ask_for_stacks(self) -> None:
        """Asks all of the engine's processes, even stopped ones, to write their stack traces; see read_stacks()."""
        stacks.ask(self.pid)

    def read_stacks(self) -> str:
        """The stack traces written so far."""
        return stacks.read(self._directory)

    @property
    def closed(self) -> bool:
        return not self._cleanup.alive

    def close(self) -> None:
        """Kills the process and its workers if they are still running, and removes the sockets and the directory."""
        self._cleanup()

    def _next(self) -> bytes | None:
        try:
            return self._answers.recv(zmq.DONTWAIT)
        except zmq.Again:
            return None


def cause_of(exit_code: int) -> str:
    """How the process ended, in words for a user."""
    if exit_code == -9:
        return "was killed (signal 9); the system also does this when memory runs out"
    if exit_code < 0:
        return f"was terminated by signal {-exit_code}"
    return f"ended with exit code {exit_code}; the log above says why"


def _private_directory() -> Path:
    """A directory that only this user may enter; nothing else protects the sockets."""
    chosen = Path(tempfile.mkdtemp(prefix="tessera-"))
    if len(str(chosen)) <= LONGEST_ADDRESS:
        return chosen
    chosen.rmdir()
    return Path(tempfile.mkdtemp(prefix="tessera-", dir="/tmp"))


log = logging.getLogger(__name__)

SHUTDOWN = 5.0  # seconds the engine has to shut down before it is killed
TURN = 0.005  # seconds of handling messages before the loop may do something else
ROUNDS = 4  # of the loop between two such turns: a request on a new connection is answered in the fifth
LAST_WORDS = 1.0  # seconds to wait, after the process has ended, for messages it sent before
STACKS = 2.0  # seconds the process has to write its stacks
STACKS_LOOK = 0.1


class EngineLife:
    """One engine process from its start to its end, followed in an event loop. hear: called with each Report. ended:
    resolves to how it ended, in words. hangs: it hangs, so it will not end by itself."""

    def __init__(
        self,
        spawned: SpawnedEngine,
        hear: Callable[[Report], None],
        on_progress: Callable[[Progress], None],
        stall_seconds: float,
    ) -> None:
        self.hangs = False
        self._deaf = False
        self._next_turn: asyncio.Handle | None = None
        self.watchdog = Watchdog(stall_seconds)
        self._spawned = spawned
        self._hear = hear
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._started: asyncio.Future[EngineInfo | TesseraError] = self._loop.create_future()
        self._loop.add_reader(spawned.descriptor, self._readable)
        spawned.on_exit(self._tell_exit)

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

    def hang(self) -> str | None:
        """How it hangs, in words; None if it does not. Call at least once per watchdog.interval."""
        self.watchdog.tick()
        self.hangs = self.watchdog.hang is not None
        return f"The engine's process {self.watchdog.hang}." if self.hangs else None

    def send(self, body: AddRequests | AbortRequests) -> None:
        self._spawned.send(body)

    async def stacks(self) -> str:
        """The stack traces of all threads of its processes, as far as they are written in time."""
        self._spawned.ask_for_stacks()
        text = ""
        for _ in range(round(STACKS / STACKS_LOOK)):
            await asyncio.sleep(STACKS_LOOK)
            before, text = text, self._spawned.read_stacks()
            if text and text == before:
                break
        return text

    async def shutdown(self) -> None:
        """Shuts the engine down; kills it if it has not started yet or takes too long. Leaves nothing behind."""
        try:
            if self._started.done() and not self.ended.done():
                self._spawned.send(Shutdown())
                await asyncio.wait((self.ended,), timeout=SHUTDOWN)
                if not self.ended.done():
                    log.warning("the engine did not shut down in time and is killed")
        finally:
            self.close()

    def close(self) -> None:
        """Kills the engine at once. Leaves no process, socket or directory behind. May be called again."""
        if not self._spawned.closed:
            self._loop.remove_reader(self._spawned.descriptor)
            self._spawned.close()

    def deafen(self) -> None:
        """Ignores all further messages from the engine."""
        self._deaf = True
        if not self._spawned.closed:
            self._loop.remove_reader(self._spawned.descriptor)

    # ---- from the engine ----------------------------------------------------

    def _readable(self) -> None:
        """More messages have arrived. If others still wait for their turn, these come with them."""
        if self._next_turn is None:
            self._receive()

    def _receive_after(self, rounds: int) -> None:
        """Goes on with the messages that have arrived after so many rounds of the loop."""
        again = partial(self._receive_after, rounds - 1) if rounds else self._receive
        self._next_turn = self._loop.call_soon(again)

    def _receive(self, seconds: float = TURN) -> None:
        """Handles the messages that have arrived, for so long that the loop can do something else in between. An error
        ends this engine, because requests could wait forever for what is lost."""
        self._next_turn = None
        if self._spawned.closed or self._deaf:
            return
        end = time.monotonic() + seconds
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
                    case ErrorMessage():
                        self._settle(answer.error())
                if time.monotonic() > end:
                    self._receive_after(ROUNDS)
                    break
        except Exception:
            log.exception("the front end failed to process a message from the engine")
            self._end("was given up because the front end failed to process its message; the log above says why")

    def _tell_exit(self, code: int) -> None:
        """Called on the thread that waits for the process."""
        # If the loop is already closed, nobody needs the exit code.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int) -> None:
        self._receive(math.inf)
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
