"""An executor with one process per worker on this host. Each gets its orders over a socket pair."""

from __future__ import annotations

import logging
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from tessera.config import EngineConfig
from tessera.errors import EngineStepError, PlatformError, TesseraError
from tessera.executor.base import Executor, Report, worker_specs
from tessera.executor.messages import (
    Allocate,
    Answer,
    Close,
    DescribeLayout,
    Execute,
    Loaded,
    MessageStream,
    Order,
    Sample,
    StartWorker,
    Under,
    WarmUp,
    WorkerFailed,
)
from tessera.platform.attention import KVLayout
from tessera.platform.device import Future
from tessera.platform.loaded_model import LoadedModel, merge_ranks
from tessera.platform.platform import WorkerSpec
from tessera.platform.runner import CachePlan, Progress
from tessera.plugins import load_platform
from tessera.processes.child import Child
from tessera.step import SchedulerOutput, StepOutput, TokenMasks

CLOSE_SECONDS = 10.0
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class WorkersExecutor(Executor):
    """Sends the same orders to all workers in the same sequence, except Allocate, which differs between pipeline
    stages, and DescribeLayout, which only the first worker of a stage gets. The first worker of a stage also answers
    for the others where they would answer the same. stages: the workers of each stage."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.platform = load_platform(config.platform, config.platform_levels)
        specs = worker_specs(self.platform, config.parallel)
        self.folder = Path(config.folder or tempfile.mkdtemp(prefix="tessera-"))
        self.workers: list[WorkerHandle] = []
        self.stages: list[list[WorkerHandle]] = []
        self.start_workers(specs)

    def start_workers(self, specs: Sequence[WorkerSpec], interface: str | None = LOOPBACK) -> None:
        """Starts them as processes of this host, so that they import while this process does. interface: over which
        gloo reaches the others; None lets it choose. Raises PlatformError."""
        try:
            for spec in specs:
                self.workers.append(LocalWorker(spec, interface))
        except OSError as error:
            self.close()
            raise PlatformError(
                f"worker {len(self.workers)} could not be started ({error.strerror}); lower --tensor-parallel-size or "
                "--pipeline-parallel-size, or allow more processes and open files."
            ) from error

    @property
    def rendezvous(self) -> str:
        """A URL where the workers meet."""
        return (self.folder / "rendezvous").as_uri()

    def load(self, report: Report) -> list[LoadedModel]:
        stage_of = partial(self.config.parallel.mesh.place, "pipeline")
        self.stages = [
            list(workers) for _, workers in groupby(self.workers, key=lambda worker: stage_of(worker.spec.rank))
        ]
        rendezvous, log_level = self.rendezvous, logging.getLogger("tessera").getEffectiveLevel()
        for worker in self.workers:
            folder = worker.folder or str(self.folder)
            self._send(worker, StartWorker(self.config, worker.spec, rendezvous, folder, log_level))
        answers: dict[int, Loaded] = {worker.spec.rank: self.answer(worker, report) for worker in self.workers}
        return [self._stage(stage, [answers[worker.spec.rank].model for worker in stage]) for stage in self.stages]

    def _stage(self, workers: Sequence[WorkerHandle], ranks: Sequence[LoadedModel]) -> LoadedModel:
        """What a stage has loaded. ranks: what each of its workers has."""
        stage = merge_ranks(ranks)
        layouts = [partial(self._layout, workers[0], needs.layer) for needs in stage.needs]
        needs = tuple(replace(one, layout=layout) for one, layout in zip(stage.needs, layouts, strict=True))
        return replace(stage, needs=needs)

    def _layout(self, worker: WorkerHandle, layer: int, block_size: int) -> KVLayout:
        worker.stream.send(DescribeLayout(layer, block_size))
        described: KVLayout = self.answer(worker).layout
        return described

    def allocate(self, plans: Sequence[CachePlan]) -> None:
        for stage, plan in zip(self.stages, plans, strict=True):
            self._broadcast(Allocate(plan), stage)
        self._all_answers()

    def warm_up(self, report: Report) -> None:
        self._broadcast(WarmUp())
        self._all_answers(report)

    def execute(self, step: SchedulerOutput) -> None:
        self._broadcast(Execute(step))

    def sample(self, pending: Any, masks: TokenMasks | None = None) -> Future[StepOutput]:
        self._broadcast(Sample(masks))
        return _Coming(self)

    def close(self) -> None:
        for worker in self.workers:
            worker.ask_to_end()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in self.workers:
            worker.end(deadline)
        if not self.config.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- orders and answers ------------------------------------------------------------------------------------------

    def _broadcast(self, order: Order, workers: Sequence[WorkerHandle] | None = None) -> None:
        for worker in workers or self.workers:
            self._send(worker, order)

    def _send(self, worker: WorkerHandle, order: Order) -> None:
        try:
            worker.stream.send(order)
        except OSError:
            raise self._gone(worker) from None

    def _all_answers(self, report: Report | None = None) -> list[Any]:
        return [self.answer(worker, report) for worker in self.workers]

    def answer(self, worker: WorkerHandle, report: Report | None = None) -> Any:
        """Waits for the worker's next answer. If another worker fails in the meantime, raises its error, because this
        one may wait for it forever."""
        if worker.early:
            return worker.early.pop(0)
        while True:
            listened = [other for other in self.workers if other is worker or not other.early]
            for ready in sorted(_readable(listened), key=lambda other: other is worker):
                answer = self._receive(ready)
                if isinstance(answer, Under):
                    if report is not None:
                        report(Progress(answer.phase, answer.done, answer.total))
                elif ready is worker:
                    return answer
                else:
                    ready.early.append(answer)

    def check_workers(self) -> None:
        for ready in _readable(self.workers, seconds=0.0):
            ready.early.append(self._receive(ready))

    def _receive(self, worker: WorkerHandle) -> Answer:
        """Raises the error of a worker that failed or is gone."""
        try:
            answer: Answer = worker.stream.receive()
        except (EOFError, OSError):
            raise self._gone(worker) from None
        if isinstance(answer, WorkerFailed):
            raise self._failure(worker, answer)
        return answer

    def _gone(self, worker: WorkerHandle) -> TesseraError:
        """Why a worker has closed its socket: its last message if that says why, else how it ended."""
        with suppress(EOFError, OSError):
            while not isinstance(answer := worker.stream.receive(), WorkerFailed):
                pass
            return self._failure(worker, answer)
        return EngineStepError(f"worker {worker.spec.rank} {worker.describe_end()}")

    def _failure(self, worker: WorkerHandle, failed: WorkerFailed) -> TesseraError:
        if failed.failure is not None:
            return failed.failure.error()
        return EngineStepError(f"worker {worker.spec.rank} failed: {failed.message}")


def _readable(workers: Sequence[WorkerHandle], seconds: float | None = None) -> list[WorkerHandle]:
    """Those with a message, or at their end. seconds: to wait at most for the first; None: until there is one."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.stream, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select(seconds)]


class WorkerHandle(ABC):
    """A worker and the socket to it."""

    def __init__(self, spec: WorkerSpec, link: socket.socket, folder: str = "") -> None:
        self.spec = spec
        self.stream = MessageStream(link, Answer)
        # Of its own; "" if the executor's is on the same host.
        self.folder = folder
        # Answers that arrived while waiting for another worker.
        self.early: list[Answer] = []

    def ask_to_end(self) -> None:
        with suppress(OSError):  # the process may have ended already
            self.stream.send(Close())

    @abstractmethod
    def end(self, deadline: float) -> None:
        """Waits until the process ends, and kills it at the deadline (of time.monotonic())."""

    @abstractmethod
    def describe_end(self) -> str:
        """How the process ended, whose socket is closed."""


class LocalWorker(WorkerHandle):
    """A worker's process on this host."""

    def __init__(self, spec: WorkerSpec, interface: str | None) -> None:
        """interface: as of start_workers(). Raises OSError."""
        link, theirs = socket.socketpair()
        threads = {} if spec.threads is None else {"OMP_NUM_THREADS": str(spec.threads)}
        with theirs:
            try:
                self.process = Child(
                    "tessera.executor.worker_process",
                    str(theirs.fileno()),
                    variables={**gloo_variables(interface), **threads, **spec.environment},
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
            except OSError:
                link.close()
                raise
        super().__init__(spec, link)

    def end(self, deadline: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        self.process.end()
        self.stream.close()

    def describe_end(self) -> str:
        return f"ended with exit code {self.process.wait(CLOSE_SECONDS)}; the log says why."


def gloo_variables(interface: str | None) -> dict[str, str]:
    """What has gloo use a network interface; None lets it choose."""
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}


class _Coming:
    """The future of a step's output from the first worker of the last stage. Call result() in the order of the
    steps."""

    def __init__(self, executor: WorkersExecutor) -> None:
        self.executor = executor
        self.value: StepOutput | None = None

    def done(self) -> bool:
        return self.value is not None

    def result(self) -> StepOutput:
        if self.value is None:
            stepped = self.executor.answer(self.executor.stages[-1][0])
            self.value = stepped.output
        assert self.value is not None
        return self.value
