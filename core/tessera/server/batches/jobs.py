"""The batches that have not ended: each from its input file to its output files, also across restarts of the server."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tessera.errors import RequestError
from tessera.server.batches.endpoints import Endpoints
from tessera.server.batches.input_file import InputFile
from tessera.server.batches.protocol import Batch, BatchError, BatchErrors, FileObject, ResultLine
from tessera.server.batches.results import BatchResults
from tessera.server.batches.runner import Room, Runner, unanswered
from tessera.server.batches.storage import Storage
from tessera.server.limits import RateLimitError
from tessera.server.settings import Limits

log = logging.getLogger(__name__)

MAX_OPEN = 1000
"""Batches that have not ended."""
MAX_ENDED = 10_000
"""Batches that have ended and are still known; the oldest are forgotten."""
MAX_RUNNING = 8
"""Batches whose requests run at once, in turn; the others wait for one of them to end."""
OPEN, ENDED = "open", "ended"


class KeptBatch(msgspec.Struct):
    """A batch as it is kept. files: the ids of its output file and its error file, which clients see in the end. ends:
    how it ends once all its requests have results. traceparent: the header of the request that made it, whose trace
    its requests belong to."""

    batch: Batch
    tenant: str
    files: tuple[str, str]
    ends: Literal["completed", "expired"] = "completed"
    traceparent: str = ""


@dataclass(eq=False)
class BatchJob:
    """A batch at work. counted: bytes of its results that the storage counts."""

    stored: KeptBatch
    task: asyncio.Task[None] | None = None
    results: BatchResults | None = field(default=None, repr=False)
    counted: int = 0

    def current(self) -> Batch:
        """The batch with the counts of this moment."""
        batch = self.stored.batch
        if self.results is not None:
            batch.request_counts = self.results.counts(batch.request_counts.total)
            batch.usage = self.results.usage
        return batch


class Jobs:
    """The batches of one server that have not ended."""

    def __init__(self, limits: Limits, storage: Storage, endpoints: Endpoints, room: Room) -> None:
        """room: in which requests are answered."""
        self._limits = limits
        self._storage = storage
        self._endpoints = endpoints
        self._room = room
        self._jobs: dict[str, BatchJob] = {}
        self._reading = asyncio.Lock()
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._ends = False

    def start(self) -> None:
        """Goes on with the batches of an earlier server."""
        for stored in self._storage.objects.labelled("batch", OPEN, KeptBatch):
            self._begin(stored)

    async def end(self) -> None:
        """Stops them all, to go on when a server starts again."""
        self._ends = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def reads(self, file_id: str) -> bool:
        """Whether one of them has this input file."""
        return any(job.stored.batch.input_file_id == file_id for job in self._jobs.values())

    def current(self, batch: Batch) -> Batch:
        """A batch as it was kept, as it is at this moment."""
        job = self._jobs.get(batch.id)
        return batch if job is None else job.current()

    async def add(self, stored: KeptBatch) -> None:
        """Raises RateLimitError, DiskFullError."""
        if len(self._jobs) >= MAX_OPEN:
            raise RateLimitError(f"There are {MAX_OPEN} batches that have not ended; wait for one of them.")
        await self._save(stored)
        self._begin(stored)

    async def cancel(self, batch: Batch) -> Batch:
        """The batch, which is cancelled from now on. Raises RequestError for one that has ended, or is about to."""
        job = self._jobs.get(batch.id)
        status = batch.status if job is None else job.stored.batch.status
        if status == "cancelling":
            return self.current(batch)
        if job is None or status not in ("validating", "in_progress"):
            raise RequestError(f"The batch cannot be cancelled: its status is {status}.", param="id")
        batch = job.current()
        batch.status, batch.cancelling_at = "cancelling", _now()
        if job.task is not None:
            job.task.cancel()
        await self._save(job.stored)  # before what the task saves, which has not gone on yet
        return batch

    # ---- one batch ---------------------------------------------------------------------------------------------------

    def _begin(self, stored: KeptBatch) -> None:
        job = self._jobs[stored.batch.id] = BatchJob(stored)
        job.task = asyncio.create_task(self._run(job))

    async def _run(self, job: BatchJob) -> None:
        try:
            await self._until_end(job)
        except Exception:
            log.exception("Batch %s failed.", job.stored.batch.id)
            await self._fail(job, [BatchError("server_error", "The server failed to run this batch; see its log.")])
        finally:
            if job.results is not None:
                job.results.close()
            del self._jobs[job.stored.batch.id]

    async def _until_end(self, job: BatchJob) -> None:
        batch = job.stored.batch
        try:
            if batch.status in ("validating", "in_progress") and not await self._answered(job):
                return
        except asyncio.CancelledError:
            if self._ends or batch.status != "cancelling":
                raise
        await self._finish(job)

    async def _answered(self, job: BatchJob) -> bool:
        """Whether all requests have results; not if the input file is wrong."""
        batch = job.stored.batch
        if batch.status == "validating" and not await self._is_valid(job):
            return False
        async with self._running:
            # Read anew, so that batches which wait hold nothing.
            source, _ = await self._read(job)
            results = await self._open(job)
            runner = Runner(self._endpoints, self._room, results.done, lambda result: self._keep(job, result))
            try:
                async with asyncio.timeout(max(batch.expires_at - time.time(), 0)) as window:
                    await runner.run(source, job.stored.tenant, job.stored.traceparent)
            except TimeoutError:
                if not window.expired():
                    raise
                job.stored.ends = "expired"
                await self._storage.until_written(lambda: asyncio.to_thread(_expire, source, results))
        batch.status, batch.finalizing_at = "finalizing", _now()
        await self._save_later(job.stored)
        return True

    async def _is_valid(self, job: BatchJob) -> bool:
        """Whether the input file is right; if not, the batch has failed."""
        batch = job.stored.batch
        source, errors = await self._read(job)
        if errors:
            await self._fail(job, errors)
            return False
        batch.status, batch.in_progress_at = "in_progress", _now()
        batch.request_counts.total = len(source.entries)
        await self._save_later(job.stored)
        return True

    async def _read(self, job: BatchJob) -> tuple[InputFile, list[BatchError]]:
        batch = job.stored.batch
        path = self._storage.path(batch.input_file_id)
        async with self._reading:
            return await asyncio.to_thread(InputFile.read, path, (batch.endpoint,), self._limits)

    async def _open(self, job: BatchJob) -> BatchResults:
        output, errors = map(self._storage.path, job.stored.files)
        job.results = await asyncio.to_thread(BatchResults, output, errors)
        job.counted = job.results.size  # an earlier server's, which the storage has found
        return job.results

    async def _keep(self, job: BatchJob, result: ResultLine) -> None:
        """Waits while the disk is full, and with it all batches."""
        assert job.results is not None
        add = job.results.add
        await self._storage.until_written(lambda: asyncio.to_thread(add, result))
        self._count(job)

    def _count(self, job: BatchJob) -> None:
        """Tells the storage of new results."""
        assert job.results is not None
        size = job.results.size
        self._storage.used_bytes += size - job.counted
        job.counted = size

    async def _finish(self, job: BatchJob) -> None:
        """Ends the batch with the results that it has."""
        batch = job.stored.batch
        await self._show_results(job, job.results or await self._open(job))
        if batch.status == "cancelling":
            batch.status, batch.cancelled_at = "cancelled", _now()
        elif job.stored.ends == "expired":
            batch.status, batch.expired_at = "expired", _now()
        else:
            batch.status, batch.completed_at = "completed", _now()
        await self._save_later(job.stored, ENDED)
        log.info("Batch %s is %s: %d requests, %d of them failed.", batch.id, batch.status,
                 batch.request_counts.total, batch.request_counts.failed)  # fmt: skip

    async def _show_results(self, job: BatchJob, results: BatchResults) -> None:
        results.close()
        self._count(job)
        batch = job.current()
        batch.output_file_id, batch.error_file_id = [await self._shown_file(job, number) for number in range(2)]

    async def _shown_file(self, job: BatchJob, number: int) -> str | None:
        """The id of one of the files of results; None if it has none."""
        key, what = job.stored.files[number], ("output", "error")[number]
        path = self._storage.path(key)
        if not path.exists():
            return None
        name = f"{job.stored.batch.id}_{what}.jsonl"
        file = FileObject(
            id=key, bytes=path.stat().st_size, created_at=_now(), filename=name, purpose="batch_output"
        )  # fmt: skip
        await self._storage.until_written(lambda: self._storage.add(file, job.stored.tenant))
        return key

    async def _fail(self, job: BatchJob, errors: list[BatchError]) -> None:
        batch = job.stored.batch
        if job.results is not None:
            await self._show_results(job, job.results)
        batch.status, batch.failed_at, batch.errors = "failed", _now(), BatchErrors(errors)
        await self._save_later(job.stored, ENDED)

    async def _save_later(self, stored: KeptBatch, label: str = OPEN) -> None:
        """At the latest when the disk has room again."""
        await self._storage.until_written(lambda: self._save(stored, label))

    async def _save(self, stored: KeptBatch, label: str = OPEN) -> None:
        """Raises DiskFullError."""
        await self._storage.objects.put("batch", stored.batch.id, stored.tenant, label, stored)
        if label == ENDED:
            await self._storage.objects.drop_oldest("batch", ENDED, MAX_ENDED)


def _expire(source: InputFile, results: BatchResults) -> None:
    """Gives the requests that have no result one that says so."""
    for entry in source.entries:
        results.add(
            unanswered(entry.custom_id, "batch_expired", "The request was not run before the completion window ended.")
        )


def _now() -> int:
    return int(time.time())
