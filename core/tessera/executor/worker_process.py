"""`python -m tessera.executor.worker_process FD [LIFELINE]`: a worker in its own process, which takes its executor's
orders over an inherited socket. LIFELINE: descriptor of what only the process has that started it, if that socket is
not."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tessera import stacks
from tessera.errors import TesseraError
from tessera.executor.messages import (
    Allocate,
    Close,
    DescribedLayout,
    DescribeLayout,
    Done,
    Execute,
    Loaded,
    MessageStream,
    Order,
    Sample,
    StartWorker,
    Stepped,
    Under,
    WarmUp,
    WorkerFailed,
)
from tessera.log import set_up_logging
from tessera.platform.device import Future
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.runner import Progress
from tessera.plugins import load_platform
from tessera.processes.error_message import ErrorMessage
from tessera.processes.parent import leave_signals_to_parent, wake_at_parent_death, watch_parent
from tessera.runner.worker import Worker
from tessera.step import StepOutput

log = logging.getLogger(__name__)


class OutputSender(threading.Thread):
    """Waits for the outputs of steps and sends them, in the order of the steps, while the main thread takes the next
    order. enter: called in the thread before it touches an output. send: called with each output. failed: called with
    the first error of a step or of sending; nothing is sent after it."""

    def __init__(
        self, enter: Callable[[], None], send: Callable[[StepOutput], None], failed: Callable[[Exception], None]
    ) -> None:
        super().__init__(name="results", daemon=True)
        self.enter, self.send, self.failed = enter, send, failed
        self._outputs: SimpleQueue[Future[StepOutput] | None] = SimpleQueue()

    def add(self, output: Future[StepOutput]) -> None:
        """Never blocks. Even an output that is ready is sent by the thread: if its main thread sent it, a worker and
        its executor could each wait for the other to receive."""
        self._outputs.put(output)

    def run(self) -> None:
        try:
            self.enter()
            while (output := self._outputs.get()) is not None:
                self.send(output.result())
        except Exception as error:  # noqa: BLE001  # whatever it is, failed() tells the executor
            self.failed(error)

    def close(self) -> None:
        """Returns when all outputs have been sent."""
        if self.is_alive():
            self._outputs.put(None)
            self.join()


class WorkerProcess:
    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream
        self.folder: Path | None = None
        self.results = OutputSender(self._enter_thread, self._send, self._failed)
        self.worker: Worker | None = None
        self.loaded: LoadedModel
        self.pending: Any = None

    def serve(self) -> None:
        """Carries out orders one after another until Close. Raises EOFError if the executor is gone."""
        while True:
            match self.stream.receive():
                case Close():
                    self.results.close()
                    self.stream.send(Done())
                    return
                case StartWorker() as start:
                    self._start(start)
                case order:
                    assert self.worker is not None, order
                    self._do(self.worker, order)

    def _start(self, start: StartWorker) -> None:
        set_up_logging(start.log_level, start.config.log_format)
        self.folder = Path(start.folder)
        stacks.write_on_signal(self.folder)
        platform = load_platform(start.config.platform, start.config.platform_levels)
        worker = self.worker = Worker(start.config, platform, start.spec, start.rendezvous)
        self.loaded = worker.load(lambda progress: self._report(worker, progress))
        self.results.start()
        self.stream.send(Loaded(self.loaded))

    def _do(self, worker: Worker, order: Order) -> None:
        send = self.stream.send
        match order:
            case DescribeLayout(layer, block_size):
                (needs,) = (needs for needs in self.loaded.needs if needs.layer == layer)
                send(DescribedLayout(needs.layout(block_size)))
            case Allocate(plan):
                worker.runner.allocate(plan)
                send(Done())
            case WarmUp():
                worker.runner.warm_up(lambda progress: self._report(worker, progress))
                send(Done())
            case Execute(step):
                self.pending = worker.runner.execute(step)
            case Sample(masks):
                self.results.add(worker.runner.sample(self.pending, masks))

    def _enter_thread(self) -> None:
        assert self.worker is not None
        self.worker.enter_thread()

    def _send(self, output: StepOutput) -> None:
        assert self.worker is not None
        if self.worker.gives_output:
            self.stream.send(Stepped(output))

    def _failed(self, error: Exception) -> None:
        """Ends the process at once: its main thread may be in a collective that never returns."""
        os._exit(report_failure(self.stream, error))

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()

    def remove_folder(self) -> None:
        """The executor is gone, and no longer can."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _report(self, worker: Worker, progress: Progress) -> None:
        if worker.spec.rank == 0:
            self.stream.send(Under(progress.phase, progress.done, progress.total))


def main() -> int:
    leave_signals_to_parent()
    wake_at_parent_death()
    link = socket.socket(fileno=int(sys.argv[1]))
    stream = MessageStream(link, Order)
    process = WorkerProcess(stream)
    watch_parent(int(sys.argv[-1]), process.remove_folder)
    try:
        process.serve()
    except (EOFError, ConnectionError):
        return 0
    except Exception as error:  # noqa: BLE001  # whatever it is, the executor is told
        return report_failure(stream, error)
    process.close()
    return 0


def report_failure(stream: MessageStream, error: Exception) -> int:
    """Tells the executor, if it is still there, which error ends this worker. Returns the exit code."""
    failed, exit_code = WorkerFailed(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"), 1
    if isinstance(error, TesseraError):
        failed.failure, exit_code = ErrorMessage.from_error(error), error.exit_code
    else:
        log.error("the worker failed", exc_info=error)
    with suppress(OSError):
        stream.send(failed)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
