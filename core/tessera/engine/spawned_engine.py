"""The parent's side of an engine process: starts it, exchanges messages with it and cleans up after it."""

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
from tessera.engine.messages import (
    MAX_MESSAGE_BYTES,
    AbortRequests,
    AddRequests,
    Answer,
    Codec,
    Shutdown,
    StartUp,
    pack_start,
)
from tessera.errors import ConfigError

log = logging.getLogger(__name__)

RECONNECT_MILLISECONDS = 20
MAX_ADDRESS_CHARS = 90  # the path of a Unix socket may have about a hundred


class SpawnedEngine:
    """A running `python -m tessera.engine` and the two sockets to it. Not thread-safe."""

    def __init__(self, config: EngineConfig, executor: str, epoch: int, child: EngineChild | None = None) -> None:
        """executor: dotted path. child: the process, if it is already running. Raises OSError, ConfigError."""
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
            self._requests.reconnect_ivl = RECONNECT_MILLISECONDS
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

    def on_exit(self, callback: Callable[[int], None]) -> None:
        """Calls it with the exit code on a separate thread as soon as the process has ended."""
        wait = self._child.wait
        threading.Thread(target=lambda: callback(wait()), name=f"engine-{self.pid}", daemon=True).start()

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


def _private_directory() -> Path:
    """A directory that only this user may enter; nothing else protects the sockets. Raises ConfigError where there is
    no folder for it, as in a container whose root is read-only."""
    try:
        chosen = Path(tempfile.mkdtemp(prefix="tessera-"))
        if len(str(chosen)) <= MAX_ADDRESS_CHARS:
            return chosen
        chosen.rmdir()
        return Path(tempfile.mkdtemp(prefix="tessera-", dir="/tmp"))
    except OSError as error:
        raise ConfigError(
            f"No temporary file can be written ({error.strerror}). Make /tmp writable, or name a folder in TMPDIR."
        ) from error
