"""An engine's process as its parent has it. It may begin before there is a configuration for it, so next to nothing is
imported here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import TracebackType

STANDARD_ERROR = 2
IN_PROCESS = "tessera.executor.in_process:InProcessExecutor"
WORKERS = "tessera.executor.workers:WorkersExecutor"


class EngineChild:
    """A running `python -m tessera.engine`, which imports its executor and waits for its configuration meanwhile. Ended
    by end(), which leaving it as a context does."""

    def __init__(self, executor: str) -> None:
        """executor: dotted path. What the process prints goes to this one's standard error. Its group is its own:
        Ctrl-C is for the parent, which ends it in order. Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tessera.engine", executor],
            stdin=subprocess.PIPE,
            stdout=STANDARD_ERROR,
            process_group=0,  # with its workers: end() kills the group
            env={**os.environ, "PYTHONSAFEPATH": "1"},
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
        """data: what pack_start made, once."""
        assert self._process.stdin is not None
        # It may have ended already; whoever waits for it finds out why.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait()

    def end(self) -> None:
        """Kills it and its workers where they still run. May be called again."""
        if self._ended:
            return
        self._ended = True
        # Its workers are of its group: one that hangs does not see that its engine is gone. (macOS: no right to signal
        # a group of which only a process that has ended is left.)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def executor_path(num_workers: int) -> str:
    """The dotted path of the executor for that many workers."""
    return IN_PROCESS if num_workers == 1 else WORKERS
