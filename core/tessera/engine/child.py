"""The parent's handle on an engine process. The process may be started before its configuration is known, so this
module imports almost nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import TracebackType

from tessera.config.environment import for_children

STANDARD_ERROR = 2
IN_PROCESS = "tessera.executor.in_process:InProcessExecutor"
WORKERS = "tessera.executor.workers:WorkersExecutor"


class EngineChild:
    """A running `python -m tessera.engine`, which imports its executor while it waits for its configuration. End it
    with end() or a `with` statement."""

    def __init__(self, executor: str) -> None:
        """executor: dotted path. The process writes its output to this process's standard error. It has its own process
        group, so Ctrl-C reaches only the parent, which then shuts it down. Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tessera.engine", executor],
            stdin=subprocess.PIPE,
            stdout=STANDARD_ERROR,
            process_group=0,  # shared with its workers, so that end() can kill the group
            env={**for_children(), "PYTHONSAFEPATH": "1"},
        )
        self._ended = False

    def __enter__(self) -> EngineChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def configure(self, data: bytes) -> None:
        """Sends the configuration; call once. data: the result of pack_start()."""
        assert self._process.stdin is not None
        # The process may have ended already. wait() then gives its exit code.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def wait(self) -> int:
        """Waits for the process to end. Returns its exit code."""
        return self._process.wait()

    def end(self) -> None:
        """Kills the process and its workers if they are still running. May be called again."""
        if self._ended:
            return
        self._ended = True
        # Kill the group, because a worker that hangs does not notice that its engine is gone. On macOS, signalling a
        # group that has only an ended process left raises PermissionError.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def executor_path(num_workers: int) -> str:
    """The dotted path of the executor for this number of workers."""
    return IN_PROCESS if num_workers == 1 else WORKERS
