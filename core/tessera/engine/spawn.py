"""The parent's side of an engine process: starts it, talks to it, hears of its end, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import zmq

from tessera import stacks
from tessera.config import EngineConfig
from tessera.engine.child import EngineChild
from tessera.engine.messages import AbortRequests, AddRequests, Answer, Codec, Shutdown, StartUp
from tessera.engine.process import pack_start

log = logging.getLogger(__name__)

RECONNECT = 20  # milliseconds
LONGEST_ADDRESS = 90  # characters: an ipc path has room for about a hundred


class SpawnedEngine:
    """A running `python -m tessera.engine` and the two sockets to it. Not to be shared between threads."""

    def __init__(self, config: EngineConfig, executor: str, epoch: int, child: EngineChild | None = None) -> None:
        """executor: dotted path. child: the process, where it runs already. Raises OSError."""
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
            # The engine's process binds this one: a socket that connects takes messages before the other end is there.
            self._requests.reconnect_ivl = RECONNECT
            self._requests.connect(start.requests)
            self._answers.bind(start.answers)
            self._child = child or EngineChild(executor)
            undo.callback(self._child.end)
            self._child.configure(pack_start(start))
            # Runs at the latest when this process ends: nothing stays behind.
            self._cleanup = weakref.finalize(self, undo.pop_all().close)
        log.info("engine process pid %d", self.pid)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def descriptor(self) -> int:
        """Readable when answers may be there; then read all of them, or it stays silent."""
        return int(self._answers.getsockopt(zmq.FD))

    def send(self, body: AddRequests | AbortRequests | Shutdown) -> None:
        """Never waits. Whether somebody listens, on_exit() tells."""
        self._requests.send(self._codec.pack_request(body), zmq.DONTWAIT)

    def receive(self) -> Iterator[Answer]:
        """The answers that are there."""
        while (data := self._next()) is not None:
            answer = self._codec.unpack_answer(data)
            if answer is not None:
                yield answer

    def on_exit(self, tell: Callable[[int], None]) -> None:
        """Calls tell(exit code), on a thread of its own, as soon as the process has ended."""
        wait = self._child.wait
        threading.Thread(target=lambda: tell(wait()), name=f"engine-{self.pid}", daemon=True).start()

    def ask_for_stacks(self) -> None:
        """Its processes write what their threads do, also where they were stopped; see read_stacks()."""
        stacks.ask(self.pid)

    def read_stacks(self) -> str:
        """What they have written so far."""
        return stacks.read(self._directory)

    @property
    def closed(self) -> bool:
        return not self._cleanup.alive

    def close(self) -> None:
        """Kills it and its workers where they still run, and removes sockets and directory."""
        self._cleanup()

    def _next(self) -> bytes | None:
        try:
            return self._answers.recv(zmq.DONTWAIT)
        except zmq.Again:
            return None


def cause_of(exit_code: int) -> str:
    """For a user: how the process ended."""
    if exit_code == -9:
        return "was killed (signal 9), which is also what the system does when memory runs out"
    if exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code}; the log above says why"


def _private_directory() -> Path:
    """Only this user may enter it: the sockets have no other lock."""
    chosen = Path(tempfile.mkdtemp(prefix="tessera-"))
    if len(str(chosen)) <= LONGEST_ADDRESS:
        return chosen
    chosen.rmdir()
    return Path(tempfile.mkdtemp(prefix="tessera-", dir="/tmp"))
