"""The engine's own process: messages in, a step, one message out, until it is told to end or whoever started it is
gone."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import struct
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import zmq

from tessera import parent, stacks
from tessera.engine.engine import Engine
from tessera.engine.messages import (
    VERSION,
    AbortRequests,
    AddRequests,
    Answer,
    Codec,
    Failure,
    Ready,
    Refused,
    Report,
    Shutdown,
    Starting,
    StartUp,
)
from tessera.engine.pulse import Pulse
from tessera.errors import RequestError, TesseraError
from tessera.log import about, set_up_logging
from tessera.platform.runner import Progress
from tessera.plugins import load_path

if TYPE_CHECKING:
    from tessera.request import Request
    from tessera.scheduler.outputs import EngineCoreOutputs

log = logging.getLogger(__name__)

HEARTBEAT = 1.0  # seconds between two messages, at most, while the engine lives
LENGTH = struct.Struct(">Q")
MAX_CONFIG_BYTES = 64 << 20
DIED = 1


class Link:
    """The engine's ends of the two sockets."""

    def __init__(self, start: StartUp) -> None:
        self._codec = Codec(start.epoch)
        self._context = zmq.Context(io_threads=1)
        self._requests = self._context.socket(zmq.PULL)
        self._answers = self._context.socket(zmq.PUSH)
        self._requests.set_hwm(0)
        self._answers.set_hwm(0)
        self._answers.linger = int(HEARTBEAT * 1000)
        self._requests.bind(start.requests)
        self._answers.connect(start.answers)
        self.pulse = Pulse(self._context, start.answers, start.epoch)
        self.pulse.start()

    def send(self, answer: Answer) -> None:
        self._answers.send(self._codec.pack_answer(answer))

    def receive(self, seconds: float) -> list[AddRequests | AbortRequests | Shutdown]:
        """All messages that are there, waiting for the first so long."""
        messages = []
        if seconds == 0.0 or self._requests.poll(int(seconds * 1000)):
            while (data := self._next()) is not None:
                message = self._codec.unpack_request(data)
                if message is not None:
                    messages.append(message)
        return messages

    def close(self) -> None:
        """Lets what was sent leave, for a second at most."""
        self.pulse.stop()
        self._requests.close(linger=0)
        self._answers.close()
        self._context.term()

    def _next(self) -> bytes | None:
        try:
            return self._requests.recv(zmq.DONTWAIT)
        except zmq.Again:
            return None


class EngineProcess:
    """The main loop around one engine."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._link = link
        self._live: dict[int, str] = {}
        self._replayed: deque[Request] = deque()
        self._refused: list[Refused] = []
        self._checked = True
        self._ending = False
        self._reported = time.monotonic()

    def run(self) -> None:
        """Until Shutdown. What the engine raises goes through."""
        while not self._ending:
            messages = self._link.receive(0.0 if self._engine.has_work else HEARTBEAT)
            for message in messages:
                self._handle(message)
            if self._replayed:
                self._take_replayed()
            if self._engine.has_work:
                self._step()
            else:
                self._rest(quiet=not messages)

    def _step(self) -> None:
        self._checked = False
        self._link.pulse.step_begins()
        outputs = self._engine.step()
        self._link.pulse.step_ends()
        for end in outputs.finished if outputs is not None else ():
            log.debug("ended: %s", end.reason, extra=about(self._live.pop(end.key, "")))
        if outputs is not None or self._refused or self._silent_for(HEARTBEAT):
            self._report(outputs)

    def _rest(self, *, quiet: bool) -> None:
        """Nothing is to do. What was done is checked once nobody asks for more."""
        if quiet and not self._checked:
            self._engine.check_integrity()
            self._checked = True
        self._report(None)

    def _silent_for(self, seconds: float) -> bool:
        return time.monotonic() - self._reported >= seconds

    def _report(self, outputs: EngineCoreOutputs | None) -> None:
        self._link.send(Report(self._engine.stats, outputs, self._refused))
        self._refused = []
        self._reported = time.monotonic()

    def _handle(self, message: AddRequests | AbortRequests | Shutdown) -> None:
        match message:
            case AddRequests(requests, replayed=True):
                self._replayed.extend(requests)
            case AddRequests(requests):
                for request in requests:
                    self._add(request)
            case AbortRequests(keys):
                self._replayed = deque(request for request in self._replayed if request.key not in keys)
                self._engine.abort(keys)
            case Shutdown():
                self._ending = True

    def _take_replayed(self) -> None:
        """As many as may wait: all that ran and all that waited at an engine come at once, and none is refused."""
        room = self._engine.config.scheduler.max_waiting - self._engine.stats.num_waiting
        for _ in range(min(room, len(self._replayed))):
            self._add(self._replayed.popleft())

    def _add(self, request: Request) -> None:
        try:
            self._check(request)
            self._engine.add(request)
        except TesseraError as error:
            self._refused.append(Refused(request.key, Failure.of(error)))
        else:
            self._live[request.key] = request.request_id
            log.debug("%d prompt tokens", request.prompt.size, extra=about(request.request_id))

    def _check(self, request: Request) -> None:
        """What no front end of ours sends, and what would end the engine for all others."""
        if request.key in self._live:
            raise RequestError(f"The engine has a request with the key {request.key} already.")
        if int(request.prompt.min()) < 0 or int(request.prompt.max()) >= self._engine.config.model.vocab_size:
            raise RequestError("The prompt holds token ids that are out of the vocabulary.", param="prompt")


class ParentWatch(threading.Thread):
    """Ends the process when the pipe from its parent closes: nobody is left to answer, and an orphan would keep the
    devices."""

    def __init__(self, pipe: BinaryIO, directory: Path) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self._pipe = pipe
        self._directory = directory

    def run(self) -> None:
        # Past the reader's buffer: its lock, held here, would keep the interpreter from ending.
        while os.read(self._pipe.fileno(), 1):
            pass
        log.warning("the process that started this engine is gone; shutting down")
        shutil.rmtree(self._directory, ignore_errors=True)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # this process and its workers, also one that is stopped
        os._exit(0)


def read_start(pipe: BinaryIO) -> StartUp | None:
    """The length-prefixed JSON on standard input; None where nothing came. Raises ValueError for anything else."""
    head = pipe.read(LENGTH.size)
    if not head:
        return None
    if len(head) < LENGTH.size:
        raise ValueError("standard input ended before the configuration")
    (length,) = LENGTH.unpack(head)
    if length > MAX_CONFIG_BYTES:
        raise ValueError(f"a configuration of {length} bytes is too long")
    start = msgspec.json.decode(pipe.read(length), type=StartUp)
    if start.version != VERSION:
        raise ValueError(f"this engine speaks version {VERSION}, its parent {start.version}")
    return start


def pack_start(start: StartUp) -> bytes:
    """What read_start reads."""
    data = msgspec.json.encode(start)
    return LENGTH.pack(len(data)) + data


def main(pipe: BinaryIO, executor: str) -> int:
    """The process from start to end; its exit code. executor: dotted path of the one that it will most likely need."""
    # Ctrl-C in a terminal and a service manager's SIGTERM reach every process; whoever started this one decides when it
    # ends. SIGHUP wakes a stopped process whose parent is gone, and ParentWatch is to end it then.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent.go_on_when_it_dies()
    imported = import_meanwhile(executor)
    start = read_start(pipe)
    if start is None:
        os._exit(0)  # whoever started this is gone, or wants no engine any more; the import is not waited for
    set_up_logging(start.log_level, start.config.log_format)
    stacks.write_on_signal(Path(start.config.folder))
    ParentWatch(pipe, Path(start.config.folder)).start()
    link = Link(start)
    try:
        return _live(start, link, imported)
    finally:
        link.close()


def import_meanwhile(path: str) -> Future[object]:
    """What a dotted path names, imported on another thread: the longest import of a start. Until it is there others may
    not import much: modules that import each other could be seen half made."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="import")
    imported: Future[object] = thread.submit(load_path, path)
    thread.shutdown(wait=False)
    return imported


def _live(start: StartUp, link: Link, imported: Future[object]) -> int:
    def report(progress: Progress) -> None:
        link.send(Starting(progress.phase, progress.done, progress.total))

    try:
        imported.result()
        # Modules stay as they are: the collector, off until now, need never look at them.
        gc.freeze()
        gc.enable()
        engine = Engine(start.config, report, executor=start.executor)
    except TesseraError as error:
        link.send(Failure.of(error))
        return error.exit_code
    # What stands now stands to the end: the collector need not look at it again in the middle of a step.
    gc.collect()
    gc.freeze()
    link.send(Ready(engine.info))
    EngineProcess(engine, link).run()
    engine.close()
    return 0
