"""A job process from within: it loads files, then does one job at a time, each within limits.

What a model folder or a client brings can take any amount of time and memory, and end the process that reads it. The
only way to stop it is to end that process. So it sets system limits (memory, processor time) for each job, in
proportion to its size. A job that exceeds them ends the process, and the parent (job_queue.py) starts a new one and
reports the error to the client.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from tessera.errors import ModelError, RequestError, TesseraError
from tessera.processes.error_message import ErrorMessage
from tessera.processes.frames import read_frame
from tessera.processes.job_kind import GIVEN_UP, OUT_OF_MEMORY, Failed, JobKind
from tessera.processes.parent import die_with_parent, leave_signals_to_parent, watch_parent


class LoadedFiles(Protocol):
    """What does jobs with the files that it has loaded."""

    @property
    def ready(self) -> Any:
        """What the parent is told of them."""

    def answer(self, job: bytearray) -> Any:
        """Raises TesseraError or MemoryError."""


def run(
    kind: JobKind[Any, Any],
    load: Callable[[bytearray], LoadedFiles],
    fatal: type[TesseraError] | tuple[type[TesseraError], ...] = (),
) -> int:
    """Runs the process, over the socket on its standard input, and returns its exit code. load: with the first message;
    raises TesseraError or MemoryError. fatal: errors of jobs after which the process ends itself."""
    leave_signals_to_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain prompts
    link = socket.socket(fileno=os.dup(0))
    die_with_parent(int(sys.argv[1]))
    # For a parent that lives and has given this process up.
    watch_parent(link.fileno())
    try:
        start = read_frame(link.recv_into)
    except EOFError:
        return 0
    try:
        kind.loading.apply()
        files = load(start)
    except TesseraError as error:
        link.sendall(kind.framed(Failed(ErrorMessage(ModelError.__name__, error.message))))
        return GIVEN_UP
    except MemoryError:
        return OUT_OF_MEMORY
    link.sendall(kind.framed(files.ready))
    # A library that panics or aborts prints its input, and prompts must not appear in the log.
    log = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    gc.freeze()
    gc.enable()
    try:
        return _serve(link, kind, files, fatal)
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        os.write(log, f"the {kind.name} failed: {type(error).__name__}\n{where}".encode())
        raise


def _serve(
    link: socket.socket,
    kind: JobKind[Any, Any],
    files: LoadedFiles,
    fatal: type[TesseraError] | tuple[type[TesseraError], ...],
) -> int:
    """Does jobs until the socket closes."""
    while True:
        try:
            job = read_frame(link.recv_into)
        except EOFError:
            return 0
        kind.limits(len(job)).apply()
        broken = False
        try:
            answer = files.answer(job)
        except TesseraError as error:
            # The request is to blame whatever it is: a template may be the client's own.
            answer = Failed(ErrorMessage(RequestError.__name__, error.message, error.param, error.code))
            broken = isinstance(error, fatal)
        except MemoryError:
            # Memory may still be held; a new process starts without it.
            return OUT_OF_MEMORY
        del job
        link.sendall(kind.framed(answer))
        if broken:
            return GIVEN_UP
