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
from tessera.server.batches.protocol import Batch, BatchError, BatchErrors, FileObject
from tessera.server.batches.results import Results
from tessera.server.batches.runner import IdleRoom, Runner, unanswered
from tessera.server.batches.storage import Storage
from tessera.server.context import ServerContext
from tessera.server.limits import RateLimitError

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
    how it ends once all its requests have results."""

    batch: Batch
    tenant: str
    files: tuple[str, str]
    ends: Literal["completed", "expired"] = "completed"


@dataclass(eq=False)
class Job:
    """A batch at work. counted: bytes of its results that the storage counts."""

    kept: KeptBatch
    task: asyncio.Task[None] | None = None
    results: Results | None = field(default=None, repr=False)
    counted: int = 0

    def shown(self) -> Batch:
        """The batch with the counts of this moment."""
        batch = self.kept.batch
        if self.results is not None:
            batch.request_counts = self.results.counts(batch.request_counts.total)
            batch.usage = self.results.usage
        return batch


class Jobs:
    """The batches of one server that have not ended."""

    def __init__(self, context: ServerContext, storage: Storage, endpoints: Endpoints) -> None:
        self._limits = context.settings.limits
        self._storage = storage
        self._endpoints = endpoints
        self._room = IdleRoom(context, lambda: not storage.full)
        self._jobs: dict[str, Job] = {}
        self._reading = asyncio.Lock()
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._ends = False

    def start(self) -> None:
        """Goes on with the batches of an earlier server."""
        for kept in self._storage.objects.labelled("batch", OPEN, KeptBatch):
            self._begin(kept)

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
        return any(job.kept.batch.input_file_id == file_id for job in self._jobs.values())

    def shown(self, batch: Batch) -> Batch:
        """A batch as it was kept, as it is at this moment."""
        job = self._jobs.get(batch.id)
        return batch if job is None else job.shown()

    async def add(self, kept: KeptBatch) -> None:
        """Raises RateLimitError."""
        if len(self._jobs) >= MAX_OPEN:
            raise RateLimitError(f"There are {MAX_OPEN} batches that have not ended; wait for one of them.")
        await self._save(kept)
        self._begin(kept)

    async def cancel(self, batch: Batch) -> Batch:
        """The batch, which is cancelled from now on. Raises RequestError for one that has ended, or is about to."""
        job = self._jobs.get(batch.id)
        status = batch.status if job is None else job.kept.batch.status
        if status == "cancelling":
            return self.shown(batch)
        if job is None or status not in ("validating", "in_progress"):
            raise RequestError(f"The batch cannot be cancelled: its status is {status}.", param="id")
        batch = job.shown()
        batch.status, batch.cancelling_at = "cancelling", _now()
        if job.task is not None:
            job.task.cancel()
        await self._save(job.kept)  # before what the task saves, which has not gone on yet
        return batch

    # ---- one batch ---------------------------------------------------------------------------------------------------

    def _begin(self, kept: KeptBatch) -> None:
        job = self._jobs[kept.batch.id] = Job(kept)
        job.task = asyncio.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        try:
            await self._until_end(job)
        except Exception:
            log.exception("Batch %s failed.", job.kept.batch.id)
            await self._fail(job, [BatchError("server_error", "The server failed to run this batch; see its log.")])
        finally:
            if job.results is not None:
                job.results.close()
            del self._jobs[job.kept.batch.id]

    async def _until_end(self, job: Job) -> None:
        batch = job.kept.batch
        try:
            if batch.status in ("validating", "in_progress") and not await self._answered(job):
                return
        except asyncio.CancelledError:
            if self._ends or batch.status != "cancelling":
                raise
        await self._finish(job)

    async def _answered(self, job: Job) -> bool:
        """Whether all requests have results; not if the input file is wrong."""
        batch = job.kept.batch
        if batch.status == "validating" and not await self._is_valid(job):
            return False
        async with self._running:
            # Read anew, so that batches which wait hold nothing.
            source, _ = await self._read(job)
            results = await self._open(job)
            runner = Runner(self._endpoints, self._room, results, lambda: self._count(job))
            try:
                async with asyncio.timeout(max(batch.expires_at - time.time(), 0)) as window:
                    await runner.run(source, job.kept.tenant)
            except TimeoutError:
                if not window.expired():
                    raise
                job.kept.ends = "expired"
                await asyncio.to_thread(_expire, source, results)
        batch.status, batch.finalizing_at = "finalizing", _now()
        await self._save(job.kept)
        return True

    async def _is_valid(self, job: Job) -> bool:
        """Whether the input file is right; if not, the batch has failed."""
        batch = job.kept.batch
        source, errors = await self._read(job)
        if errors:
            await self._fail(job, errors)
            return False
        batch.status, batch.in_progress_at = "in_progress", _now()
        batch.request_counts.total = len(source.entries)
        await self._save(job.kept)
        return True

    async def _read(self, job: Job) -> tuple[InputFile, list[BatchError]]:
        batch = job.kept.batch
        path = self._storage.path(batch.input_file_id)
        async with self._reading:
            return await asyncio.to_thread(InputFile.read, path, (batch.endpoint,), self._limits)

    async def _open(self, job: Job) -> Results:
        output, errors = map(self._storage.path, job.kept.files)
        job.results = await asyncio.to_thread(Results, output, errors)
        job.counted = job.results.size  # an earlier server's, which the storage has found
        return job.results

    def _count(self, job: Job) -> None:
        """Tells the storage of new results."""
        assert job.results is not None
        size = job.results.size
        self._storage.used_bytes += size - job.counted
        job.counted = size

    async def _finish(self, job: Job) -> None:
        """Ends the batch with the results that it has."""
        batch = job.kept.batch
        await self._show_results(job, job.results or await self._open(job))
        if batch.status == "cancelling":
            batch.status, batch.cancelled_at = "cancelled", _now()
        elif job.kept.ends == "expired":
            batch.status, batch.expired_at = "expired", _now()
        else:
            batch.status, batch.completed_at = "completed", _now()
        await self._save(job.kept, ENDED)
        log.info("Batch %s is %s: %d requests, %d of them failed.", batch.id, batch.status,
                 batch.request_counts.total, batch.request_counts.failed)  # fmt: skip

    async def _show_results(self, job: Job, results: Results) -> None:
        results.close()
        self._count(job)
        batch = job.shown()
        batch.output_file_id, batch.error_file_id = [await self._shown_file(job, number) for number in range(2)]

    async def _shown_file(self, job: Job, number: int) -> str | None:
        """The id of one of the files of results; None if it has none."""
        key, what = job.kept.files[number], ("output", "error")[number]
        path = self._storage.path(key)
        if not path.exists():
            return None
        name = f"{job.kept.batch.id}_{what}.jsonl"
        file = FileObject(
            id=key, bytes=path.stat().st_size, created_at=_now(), filename=name, purpose="batch_output"
        )  # fmt: skip
        await self._storage.add(file, job.kept.tenant)
        return key

    async def _fail(self, job: Job, errors: list[BatchError]) -> None:
        batch = job.kept.batch
        if job.results is not None:
            await self._show_results(job, job.results)
        batch.status, batch.failed_at, batch.errors = "failed", _now(), BatchErrors(errors)
        await self._save(job.kept, ENDED)

    async def _save(self, kept: KeptBatch, label: str = OPEN) -> None:
        await self._storage.objects.put("batch", kept.batch.id, kept.tenant, label, kept)
        if label == ENDED:
            await self._storage.objects.drop_oldest("batch", ENDED, MAX_ENDED)


def _expire(source: InputFile, results: Results) -> None:
    """Gives the requests that have no result one that says so."""
    for entry in source.entries:
        results.add(
            unanswered(entry.custom_id, "batch_expired", "The request was not run before the completion window ended.")
        )


def _now() -> int:
    return int(time.time())
