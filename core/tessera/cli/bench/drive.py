"""Sends jobs to a client, each at its time, and records what comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tessera.cli.bench.record import Record
from tessera.cli.bench.workload import Job
from tessera.cli.client import Client
from tessera.errors import ServerError, TesseraError


class Driver:
    """sampling: of every request, beside its length. max_concurrency: requests in work at once; the others are sent as
    these end, and timed from their sending. timeout: seconds after which a request counts as failed. clock: seconds.
    on_done: hears how many are done."""

    def __init__(
        self,
        client: Client,
        sampling: Mapping[str, Any],
        *,
        max_concurrency: int | None = None,
        timeout: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        on_done: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._client = client
        self._sampling = {**sampling, "ignore_eos": True}
        self._free = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._timeout = timeout
        self._clock = clock
        self._on_done = on_done

    async def run(self, jobs: Sequence[Job], times: Sequence[float]) -> tuple[list[Record], float]:
        """A record for each job, in their order, and the seconds of it all. times: when to send each, in seconds after
        the start. What goes wrong with a request stands in its record."""
        records = [Record(len(job.prompt), job.output_len) for job in jobs]
        done = 0

        async def one(job: Job, record: Record) -> None:
            nonlocal done
            await self._record(job, record)
            done += 1
            self._on_done(done)

        began = self._clock()
        async with asyncio.TaskGroup() as tasks:
            for job, record, at in zip(jobs, records, times, strict=True):
                wait = began + at - self._clock()
                if wait > 0:
                    await asyncio.sleep(wait)
                tasks.create_task(one(job, record))
        return records, self._clock() - began

    async def _record(self, job: Job, record: Record) -> None:
        if self._free is None:
            await self._measure(job, record)
        else:
            async with self._free:
                await self._measure(job, record)

    async def _measure(self, job: Job, record: Record) -> None:
        record.sent = self._clock()
        try:
            async with asyncio.timeout(self._timeout):
                await self._receive(job, record)
        except TimeoutError:
            record.error = ServerError(f"There was no whole answer within {self._timeout:g} s.")
        except TesseraError as error:
            record.error = error

    async def _receive(self, job: Job, record: Record) -> None:
        counted, said = 0, None
        sampling = {**self._sampling, "max_tokens": job.output_len}
        async with aclosing(self._client.complete(job.prompt, sampling)) as pieces:
            async for piece in pieces:
                if piece.num_tokens or piece.text:
                    record.received.append(self._clock())
                    counted += piece.num_tokens
                if piece.usage is not None:
                    said = piece.usage.completion_tokens
        record.output_len = counted if said is None else said
        if not record.received:
            raise ServerError("An answer had no tokens.")
