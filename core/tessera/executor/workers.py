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
        self.workers: list[_WorkerHandle] = []
        try:
            for spec in specs:
                self.workers.append(_WorkerHandle(spec))
        except OSError as error:
            self.close()
            raise PlatformError(
                f"worker {len(self.workers)} could not be started ({error.strerror}); lower --tensor-parallel-size or "
                "--pipeline-parallel-size, or allow more processes and open files."
            ) from error
        stage_of = partial(config.parallel.mesh.place, "pipeline")
        self.stages = [
            list(workers) for _, workers in groupby(self.workers, key=lambda worker: stage_of(worker.spec.rank))
        ]

    def load(self, report: Report) -> list[LoadedModel]:
        rendezvous = (self.folder / "rendezvous").as_uri()
        log_level = logging.getLogger("tessera").getEffectiveLevel()
        for worker in self.workers:
            self._send(worker, StartWorker(self.config, worker.spec, rendezvous, str(self.folder), log_level))
        answers: dict[int, Loaded] = {worker.spec.rank: self.answer(worker, report) for worker in self.workers}
        return [self._stage(stage, [answers[worker.spec.rank].model for worker in stage]) for stage in self.stages]

    def _stage(self, workers: Sequence[_WorkerHandle], ranks: Sequence[LoadedModel]) -> LoadedModel:
        """What a stage has loaded. ranks: what each of its workers has."""
        stage = merge_ranks(ranks)
        layouts = [partial(self._layout, workers[0], needs.layer) for needs in stage.needs]
        needs = tuple(replace(one, layout=layout) for one, layout in zip(stage.needs, layouts, strict=True))
        return replace(stage, needs=needs)

    def _layout(self, worker: _WorkerHandle, layer: int, block_size: int) -> KVLayout:
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

    def _broadcast(self, order: Order, workers: Sequence[_WorkerHandle] | None = None) -> None:
        for worker in workers or self.workers:
            self._send(worker, order)

    def _send(self, worker: _WorkerHandle, order: Order) -> None:
        try:
            worker.stream.send(order)
        except OSError:
            raise self._gone(worker) from None

    def _all_answers(self, report: Report | None = None) -> list[Any]:
        return [self.answer(worker, report) for worker in self.workers]

    def answer(self, worker: _WorkerHandle, report: Report | None = None) -> Any:
        """Waits for the worker's next answer. If another worker fails in the meantime, raises its error, because this
        one may wait for it forever."""
        if worker.early:
            return worker.early.pop(0)
        while True:
            for ready in self._readable(worker):
                try:
                    answer: Answer = ready.stream.receive()
                except (EOFError, ConnectionError):
                    raise self._gone(ready) from None
                if isinstance(answer, WorkerFailed):
                    raise self._failure(ready, answer)
                if isinstance(answer, Under):
                    if report is not None:
                        report(Progress(answer.phase, answer.done, answer.total))
                elif ready is worker:
                    return answer
                else:
                    ready.early.append(answer)

    def _readable(self, wanted: _WorkerHandle) -> list[_WorkerHandle]:
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                if worker is wanted or not worker.early:
                    selector.register(worker.stream, selectors.EVENT_READ, worker)
            ready = [key.data for key, _ in selector.select()]
        return sorted(ready, key=lambda worker: worker is wanted)

    def _gone(self, worker: _WorkerHandle) -> TesseraError:
        """Why a worker has closed its socket: its last message if that says why, else its exit code."""
        with suppress(EOFError, ConnectionError):
            while not isinstance(answer := worker.stream.receive(), WorkerFailed):
                pass
            return self._failure(worker, answer)
        code = worker.process.wait(CLOSE_SECONDS)
        return EngineStepError(f"worker {worker.spec.rank} ended with exit code {code}; the log says why.")

    def _failure(self, worker: _WorkerHandle, failed: WorkerFailed) -> TesseraError:
        if failed.failure is not None:
            return failed.failure.error()
        return EngineStepError(f"worker {worker.spec.rank} failed: {failed.message}")


class _WorkerHandle:
    """A worker's process and the socket to it. early: answers that arrived while waiting for another worker."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.early: list[Answer] = []
        link, theirs = socket.socketpair()
        threads = {} if spec.threads is None else {"OMP_NUM_THREADS": str(spec.threads)}
        with theirs:
            try:
                self.process = Child(
                    "tessera.executor.worker_process",
                    str(theirs.fileno()),
                    variables={"GLOO_SOCKET_IFNAME": LOOPBACK, **threads, **spec.environment},
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
            except OSError:
                link.close()
                raise
        self.stream = MessageStream(link, Answer)

    def ask_to_end(self) -> None:
        with suppress(OSError):  # the process may have ended already
            self.stream.send(Close())

    def end(self, deadline: float) -> None:
        """Waits until the process ends, and kills it at the deadline (of time.monotonic())."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        self.process.end()
        self.stream.close()


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
