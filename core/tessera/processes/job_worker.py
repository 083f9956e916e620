"""One job process, as its parent has it: started, spoken to, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import weakref
from typing import Generic, TypeVar

from tessera.errors import ModelError
from tessera.processes.child import Child
from tessera.processes.frames import read_frame_async
from tessera.processes.job_kind import OUT_OF_MEMORY, Failed, JobKind
from tessera.processes.job_limits import MIB, JobLimits
from tessera.processes.processor_time import processor_seconds

R = TypeVar("R")
A = TypeVar("A")

JOB_EXIT_CODES = frozenset({-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL})
"""Exit codes that a job can cause: out of processor time, memory or stack, or a crash in the library."""

_READ_AHEAD = 1 << 20
_WRITE_BYTES = 1 << 18  # of a job at once: what the socket does not take is copied
_STANDING_SHARE = 0.05
"""Of the clock's limit: a worker that has had less processor time in it stands still."""
_UNWATCHED_SECONDS = 0.5  # that a job may take before anybody looks whether its worker works


class JobWorker(Generic[R, A]):
    """One worker: a running process of the kind's module and the socket to it."""

    def __init__(self, kind: JobKind[R, A], start: bytes) -> None:
        """start: its first message, framed. Raises OSError."""
        self._kind = kind
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = Child(
                kind.module, variables=kind.variables, new_group=True, dies_with_parent=True, stdin=theirs
            )
        # The worker reads this once it is running; it fits in the socket's buffer.
        self._socket.sendall(start)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.ready: R | None = None
        # Runs when this process ends, at the latest.
        self._cleanup = weakref.finalize(self, _end, self._child, self._socket)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.is_running

    async def load(self) -> R:
        """Waits until the worker has loaded its files. Raises ModelError or the kind's worker_error."""
        if self.ready is not None:
            return self.ready
        loading = self._kind.loading
        answer: R | Failed | None = None
        with contextlib.suppress(TimeoutError, EOFError, OSError):
            async with asyncio.timeout(loading.clock_seconds):
                answer = self._kind.decode_ready(await self._exchange(None))
        if isinstance(answer, Failed):
            raise answer.failure.error()
        if answer is not None:
            self.ready = answer
            return answer
        code = await self.end()
        if code in JOB_EXIT_CODES or code == OUT_OF_MEMORY or code == -signal.SIGKILL:
            raise ModelError(
                f"{self._kind.files} of this model cannot be loaded: they take more than "
                f"{loading.seconds} s or {loading.memory_bytes // MIB} MiB, or end the process that loads them."
            )
        raise self._kind.worker_error(f"The {self._kind.name} did not start: it ended with exit code {code}.")

    async def answer(self, job: bytes, limits: JobLimits) -> A | Failed:
        """The answer to a framed job. Raises TimeoutError if the worker has had hardly any processor time for as long
        as the clock's limit: it stands still, or the machine is too busy. A job that takes too much of it ends the
        worker by itself. Raises EOFError or OSError if the worker has ended."""
        loop = asyncio.get_running_loop()
        next_look: asyncio.TimerHandle | None = None
        async with asyncio.timeout(None) as standing:

            def look(before: float | None) -> None:
                nonlocal next_look
                used = processor_seconds(self.pid)
                if before is not None and used - before < _STANDING_SHARE * limits.clock_seconds:
                    standing.reschedule(loop.time())
                else:
                    next_look = loop.call_later(limits.clock_seconds, look, used)

            next_look = loop.call_later(_UNWATCHED_SECONDS, look, None)
            try:
                return self._kind.decode(await self._exchange(job))
            finally:
                next_look.cancel()

    async def _exchange(self, job: bytes | None) -> bytes:
        """Sends a framed job (None sends nothing) and returns what comes back. Raises EOFError or OSError if the worker
        has ended."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket, limit=_READ_AHEAD)
        reader, writer = self._streams
        if job is not None:
            for start in range(0, len(job), _WRITE_BYTES):
                writer.write(job[start : start + _WRITE_BYTES])
                await writer.drain()
        return await read_frame_async(reader)

    async def end(self) -> int:
        """Kills the worker if it is running, and returns its exit code."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._child.kill()
        return await asyncio.to_thread(self._child.wait)

    def close(self) -> None:
        """Ends the worker at once and cleans up. May be called again."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._cleanup()


def _end(child: Child, link: socket.socket) -> None:
    child.end()
    link.close()


def describe_exit(code: int) -> str:
    if code == OUT_OF_MEMORY:
        return "out of memory"
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
