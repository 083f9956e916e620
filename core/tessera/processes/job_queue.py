"""A queue of jobs and the worker that does them, one at a time. Clients take turns; a worker that dies, stands
still or goes on for a client that has left is replaced, and the jobs behind it are not lost."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any, Generic, TypeVar

from tessera.errors import TesseraError
from tessera.processes.fair_queue import FairQueue
from tessera.processes.frames import frame_bytes
from tessera.processes.job_kind import OUT_OF_MEMORY, Failed, JobKind
from tessera.processes.job_limits import MIB
from tessera.processes.job_worker import JOB_EXIT_CODES, JobWorker, describe_exit

R = TypeVar("R")
A = TypeVar("A")

log = logging.getLogger(__name__)

MOST_WAITING = 256 * MIB  # of jobs in one queue
_LEFT_SECONDS = 1.0  # a job may go on for so long after its client has left; a new worker takes about as long
_TRIES = 2  # attempts at a job whose worker was killed from outside, or stood still


class JobQueue(Generic[R, A]):
    """A queue of jobs and its worker. Belongs to the event loop that first uses it."""

    def __init__(self, kind: JobKind[R, A], start: Any) -> None:
        """start: the worker's first message."""
        self._kind = kind
        self.restarts = 0
        self._closed = False
        self._start = kind.framed(start)
        self._process: JobWorker[R, A] | None = None
        self._jobs: FairQueue[tuple[bytes, asyncio.Future[A | Failed]]] = FairQueue(MOST_WAITING, kind.overloaded)
        self._working: asyncio.Task[None] | None = None

    def begin(self) -> JobWorker[R, A]:
        """The worker, started if there is none; it loads its files by itself. Raises the kind's worker_error."""
        if self._process is None:
            try:
                self._process = JobWorker(self._kind, self._start)
            except OSError as error:
                raise self._kind.worker_error(f"The {self._kind.name} did not start: {error.strerror}.") from error
        return self._process

    async def load(self) -> R:
        """Raises ModelError or the kind's worker_error."""
        return await self.begin().load()

    def check_open(self) -> None:
        """Raises the kind's worker_error after close()."""
        if self._closed:
            raise self._kind.worker_error(f"The {self._kind.name}s are closed.")

    async def ask(self, job: bytes, owner: str) -> A | Failed:
        """Runs a job. A job cancelled while it waits is dropped. owner: who takes turns with others. Raises
        the kind's limit_error or worker_error, or OverloadedError."""
        self.check_open()
        if self._working is None:
            self._working = asyncio.create_task(self._work(), name=self._kind.name)
        answer: asyncio.Future[A | Failed] = asyncio.get_running_loop().create_future()
        waiting = job, answer
        self._jobs.put(owner, waiting, len(job))
        try:
            return await answer
        finally:
            if not answer.done() or answer.cancelled():
                self._jobs.drop(owner, waiting)

    async def close(self) -> None:
        """Ends the worker at once and cancels waiting jobs. May be called again."""
        self._closed = True
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait((self._working,))
        while len(self._jobs):
            (await self._jobs.get())[1].cancel()
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _work(self) -> None:
        while True:
            job, answer = await self._jobs.get()
            if answer.done():
                continue
            try:
                result = await self._unless_left(job, answer)
            except TesseraError as error:
                if not answer.done():
                    answer.set_exception(error)
            except BaseException:
                answer.cancel()
                raise
            else:
                if not answer.done() and result is not None:
                    answer.set_result(result)

    async def _unless_left(self, job: bytes, answer: asyncio.Future[A | Failed]) -> A | Failed | None:
        """The answer to a job. None if its client has left; a worker that goes on with it for long is replaced, but not
        while it loads its files, which the next job needs too."""
        await self._loaded()
        if answer.done():
            return None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as longest:

                def shorten(_: object) -> None:
                    longest.reschedule(loop.time() + _LEFT_SECONDS)

                answer.add_done_callback(shorten)
                try:
                    return await self._done(job)
                finally:
                    answer.remove_done_callback(shorten)
        except TimeoutError:
            pass
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()
            process.close()
        self.begin()
        return None

    async def _done(self, job: bytes) -> A | Failed:
        limits = self._kind.limits(frame_bytes(job))
        for _ in range(_TRIES):
            process = await self._loaded()
            try:
                return await process.answer(job, limits)
            except TimeoutError:
                await self._replace(process, "stood still")
                continue
            except (EOFError, OSError):
                code = await self._replace(process, "ended")
            if code == -signal.SIGXCPU:
                raise self._kind.limit_error(self._kind.over_time(limits))
            if code in (OUT_OF_MEMORY, -signal.SIGABRT):
                raise self._kind.limit_error(self._kind.over_memory(limits))
            if code in JOB_EXIT_CODES:
                raise self._kind.limit_error(f"{self._kind.work} crashed the process that did it.")
        raise self._kind.worker_error(
            f"The {self._kind.name} was ended twice while it was at this request, though it had not reached its "
            "limits; the machine may be too busy. Try again."
        )

    async def _loaded(self) -> JobWorker[R, A]:
        """A running worker that has loaded its files. Raises the kind's worker_error."""
        process = self.begin()
        if not process.running:
            await self._replace(process, "ended")
            process = self.begin()
        try:
            await process.load()
        except TesseraError as error:
            # It loaded successfully before, so let the next job try again.
            process.close()
            self._process = None
            log.error("the %s does not come up again: %s", self._kind.name, error.message)
            raise self._kind.worker_error(error.message) from error
        return process

    async def _replace(self, process: JobWorker[R, A], cause: str) -> int:
        """Ends a worker and starts another; returns the exit code of the first."""
        code = await process.end()
        process.close()
        self.restarts += 1
        ended = describe_exit(code)
        log.warning("%s %d %s (%s); another takes its place", self._kind.name, process.pid, cause, ended)
        self._process = None
        self.begin()
        return code
