"""The engine's own process: receives messages, runs a step and sends a report, until it is told to shut down or its
parent is gone."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from tessera import stacks
from tessera.engine.engine import Engine
from tessera.engine.messages import (
    MAX_MESSAGE_BYTES,
    AbortRequests,
    AddRequests,
    Answer,
    Codec,
    EngineReady,
    Refused,
    Report,
    Shutdown,
    Starting,
    StartUp,
    read_start,
)
from tessera.engine.pulse import Pulse
from tessera.errors import RequestError, TesseraError
from tessera.log import about, set_up_logging
from tessera.platform.runner import Progress
from tessera.plugins import load_path
from tessera.processes.error_message import ErrorMessage
from tessera.processes.guard import Guard
from tessera.processes.parent import leave_signals_to_parent, wake_at_parent_death, watch_parent
from tessera.sampling_params import changed

if TYPE_CHECKING:
    from tessera.request import Request
    from tessera.scheduler.outputs import EngineCoreOutputs

log = logging.getLogger(__name__)

HEARTBEAT = 1.0  # most seconds between two reports, unless a step takes longer
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
        self._requests.maxmsgsize = MAX_MESSAGE_BYTES
        self._answers.linger = int(HEARTBEAT * 1000)
        self._requests.bind(start.requests)
        self._answers.connect(start.answers)
        self.pulse = Pulse(self._context, start.answers, start.epoch)
        self.pulse.start()

    def send(self, answer: Answer) -> None:
        """Raises ValueError for more than the front end receives."""
        data = self._codec.pack_answer(answer)
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"an answer of {len(data)} bytes is larger than a message may be")
        self._answers.send(data)

    def receive(self, seconds: float) -> list[AddRequests | AbortRequests | Shutdown]:
        """All messages that have arrived. Waits up to `seconds` for the first."""
        messages = []
        if seconds == 0.0 or self._requests.poll(int(seconds * 1000)):
            while (data := self._next()) is not None:
                message = self._codec.unpack_request(data)
                if message is not None:
                    messages.append(message)
        return messages

    def close(self) -> None:
        """Closes the sockets. Waits up to a second for queued messages to be sent."""
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
        self._lists = SharedLists()
        self._checked = True
        self._ending = False
        self._reported = time.monotonic()

    def run(self) -> None:
        """Runs until a Shutdown message arrives. Errors from the engine are not caught."""
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
        """The engine has no work. quiet: no message came either; the first time, checks the engine's integrity."""
        if quiet and not self._checked:
            self._engine.check_integrity()
            self._checked = True
        self._engine.rest()
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
        """Adds as many replayed requests as the waiting queue has room for. They arrive all at once, those that were
        running as well as those that were waiting, and none may be refused."""
        room = self._engine.config.scheduler.max_waiting - self._engine.stats.num_waiting
        for _ in range(min(room, len(self._replayed))):
            self._add(self._replayed.popleft())

    def _add(self, request: Request) -> None:
        try:
            self._check(request)
            self._engine.add(self._lists.share(request))
        except TesseraError as error:
            self._refused.append(Refused(request.key, ErrorMessage.from_error(error)))
        else:
            self._live[request.key] = request.request_id
            log.debug("%d prompt tokens", request.prompt.size, extra=about(request.request_id))

    def _check(self, request: Request) -> None:
        """Refuses what our own front end never sends and what would crash the engine."""
        if request.key in self._live:
            raise RequestError(f"The engine already has a request with the key {request.key}.")
        if int(request.prompt.min()) < 0 or int(request.prompt.max()) >= self._engine.config.model.vocab_size:
            raise RequestError("The prompt has token ids outside the vocabulary.", param="prompt")


class SharedLists:
    """Lists of allowed_token_ids, as long as the vocabulary may be: requests with an equal one share it. Keeps the few
    used last, for requests that come one after the other with the same list."""

    MAX_LISTS = 4

    def __init__(self) -> None:
        self._lists: dict[Sequence[int], Sequence[int]] = {}

    def share(self, request: Request) -> Request:
        """The request with the list that others have."""
        ids = request.params.allowed_token_ids
        if ids is None:
            return request
        ids = tuple(ids)
        shared = self._lists.pop(ids, ids)
        self._lists[shared] = shared  # the one used last is the last
        if len(self._lists) > self.MAX_LISTS:
            del self._lists[next(iter(self._lists))]
        if shared is request.params.allowed_token_ids:
            return request
        return msgspec.structs.replace(request, params=changed(request.params, allowed_token_ids=shared))


def clean_up_orphan(folder: Path) -> None:
    """The parent is gone: removes the engine's folder and kills its workers, because orphans would keep the devices. If
    this cannot run, the Guard does the same a little later."""
    log.warning("the process that started this engine is gone; shutting down")
    shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # this process and its workers, even stopped ones


def main(pipe: BufferedReader, executor: str) -> int:
    """Runs the process and returns its exit code. executor: dotted path of the executor that it will most likely
    need."""
    leave_signals_to_parent()
    wake_at_parent_death()
    guard = Guard(pipe.fileno())
    imported = import_meanwhile(executor)
    start = read_start(pipe)
    if start is None:
        os._exit(0)  # the parent is gone or needs no engine; do not wait for the import
    set_up_logging(start.log_level, start.config.log_format)
    stacks.write_on_signal(Path(start.config.folder))
    guard.clean(start.config.folder)
    watch_parent(pipe.fileno(), partial(clean_up_orphan, Path(start.config.folder)))
    link = Link(start)
    try:
        return _live(start, link, imported)
    finally:
        link.close()


def import_meanwhile(path: str) -> Future[object]:
    """Imports what a dotted path names on another thread, as it is the longest import of a start. Until it is done, the
    main thread must import little: it could see half-initialized modules that import each other."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="import")
    imported: Future[object] = thread.submit(load_path, path)
    thread.shutdown(wait=False)
    return imported


def _live(start: StartUp, link: Link, imported: Future[object]) -> int:
    def report(progress: Progress) -> None:
        link.send(Starting(progress.phase, progress.done, progress.total))

    try:
        imported.result()
        # The imported modules stay until the end, so the collector, off until now, never needs to scan them.
        gc.freeze()
        gc.enable()
        engine = Engine(start.config, report, executor=start.executor)
    except TesseraError as error:
        link.send(ErrorMessage.from_error(error))
        return error.exit_code
    # All objects of the start stay until the end, so the collector need not scan them in the middle of a step.
    gc.collect()
    gc.freeze()
    link.send(EngineReady(engine.info))
    EngineProcess(engine, link).run()
    engine.close()
    return 0
