"""Sends jobs to a client at their times and records the results."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from tessera.cli.bench.workload import BenchRequest
from tessera.cli.client import Client
from tessera.cli.report import progress
from tessera.errors import ServerError, TesseraError

Clock = Callable[[], float]
"""In seconds."""


@dataclass
class Record:
    """The measurements of one request, in seconds on one clock."""

    prompt_len: int  # in tokens
    max_tokens: int  # in tokens
    sent: float = 0.0  # when it was sent
    received: list[float] = field(default_factory=list)  # when each piece with tokens arrived
    output_len: int = 0  # tokens of the answer
    error: TesseraError | None = None  # why the answer is incomplete
    num_prompts: int = 1  # of the request

    @property
    def completed(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.received[0] - self.sent

    @property
    def e2el(self) -> float:
        """End-to-end latency: time to the last token."""
        return self.received[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None if there is only one."""
        return (self.e2el - self.ttft) / (self.output_len - 1) if self.output_len > 1 else None

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies: the gaps between pieces. A piece is one token, unless the client was too slow."""
        return [later - earlier for earlier, later in zip(self.received, self.received[1:], strict=False)]


def peak_concurrency(records: list[Record]) -> int:
    """The most requests in flight at once, from sending to the last token. Requests without tokens do not count."""
    changes = [change for r in records if r.received for change in ((r.sent, 1), (r.received[-1], -1))]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak


J_contra = TypeVar("J_contra", contravariant=True)


class Exchange(Protocol[J_contra]):
    """What a benchmark asks, and what it records of the answer."""

    def record(self, job: J_contra) -> Record:
        """Before the job is sent."""
        ...

    async def run(self, job: J_contra, record: Record, clock: Clock) -> None:
        """Sends the job and completes its record. Raises TesseraError."""
        ...


class CompletionExchange(Exchange[BenchRequest]):
    """Streams answers of a fixed length."""

    def __init__(self, client: Client, sampling: Mapping[str, Any]) -> None:
        """sampling: of every request, except its length."""
        self._client = client
        self._sampling = {**sampling, "ignore_eos": True}

    def record(self, job: BenchRequest) -> Record:
        return Record(len(job.prompt), job.output_len)

    async def run(self, job: BenchRequest, record: Record, clock: Clock) -> None:
        counted, said = 0, None
        sampling = {**self._sampling, "max_tokens": job.output_len}
        async with aclosing(self._client.complete(job.prompt, sampling)) as pieces:
            async for piece in pieces:
                if piece.num_tokens or piece.text:
                    record.received.append(clock())
                    counted += piece.num_tokens
                if piece.usage is not None:
                    said = piece.usage.completion_tokens
        record.output_len = counted if said is None else said
        if not record.received:
            raise ServerError("The answer had no tokens.")


class Driver(Generic[J_contra]):
    def __init__(
        self,
        exchange: Exchange[J_contra],
        *,
        # The most requests in flight; the others are sent as these finish, and timed from then.
        max_concurrency: int | None = None,
        timeout: float | None = None,  # seconds after which a request counts as failed
        clock: Clock = time.perf_counter,
        on_done: Callable[[int], None] = lambda _count: None,  # called with the number of finished requests
    ) -> None:
        self._exchange = exchange
        self._free = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._timeout = timeout
        self._clock = clock
        self._on_done = on_done

    async def run(self, jobs: Sequence[J_contra], times: Sequence[float]) -> tuple[list[Record], float]:
        """Returns a record for each job, in order, and the duration in seconds. times: when to send each, in seconds
        after the start. A request's error is in its record."""
        records = [self._exchange.record(job) for job in jobs]
        done = 0

        async def run_job(job: J_contra, record: Record) -> None:
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
                tasks.create_task(run_job(job, record))
        return records, self._clock() - began

    async def _record(self, job: J_contra, record: Record) -> None:
        if self._free is None:
            await self._measure(job, record)
        else:
            async with self._free:
                await self._measure(job, record)

    async def _measure(self, job: J_contra, record: Record) -> None:
        record.sent = self._clock()
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange.run(job, record, self._clock)
        except TimeoutError:
            record.error = ServerError(f"The answer was not complete within {self._timeout:g} s.")
        except TesseraError as error:
            record.error = error


async def run_warm(
    exchange: Exchange[J_contra],
    warmups: Sequence[J_contra],
    jobs: Sequence[J_contra],
    times: Sequence[float],
    *,
    max_concurrency: int | None,
    timeout: float,  # noqa: ASYNC109 - of each request, by Driver
) -> tuple[list[Record], float]:
    """What Driver.run returns for the jobs, after all warm-ups have been answered. Shows progress. Raises the first
    error of a warm-up, since other requests would fail in the same way."""
    first, _ = await Driver(exchange, timeout=timeout).run(warmups, [0.0] * len(warmups))
    raise_first(first)
    with progress("requests", len(jobs)) as on_done:
        driver = Driver(exchange, max_concurrency=max_concurrency, timeout=timeout, on_done=on_done)
        return await driver.run(jobs, times)


def failures(records: Sequence[Record]) -> dict[str, int]:
    """How often each error occurred, most frequent first."""
    return dict(Counter(record.error.message for record in records if record.error is not None).most_common())


def exit_code_of(records: Sequence[Record]) -> int:
    """0 if every answer is complete, otherwise the exit code of the first error."""
    return next((record.error.exit_code for record in records if record.error is not None), 0)


def raise_first(records: Sequence[Record]) -> None:
    """Raises the first error of the records, if there is one."""
    for record in records:
        if record.error is not None:
            raise record.error


def meets_objectives(record: Record, objectives: Mapping[str, float]) -> bool:
    """Whether a request met all goodput objectives (seconds by metric). A request with a single token has no TPOT, so
    it meets any TPOT objective."""
    return record.completed and all(
        (value := getattr(record, metric)) is None or value <= limit for metric, limit in objectives.items()
    )
