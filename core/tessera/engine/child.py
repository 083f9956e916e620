"""The parent's handle on an engine process. The process may be started before its configuration is known, so this
module imports almost nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from subprocess import PIPE

from tessera.processes.child import Child

IN_PROCESS = "tessera.executor.in_process:InProcessExecutor"
WORKERS = "tessera.executor.workers:WorkersExecutor"
HOSTS = "tessera.executor.hosts:HostsExecutor"


class EngineChild(Child):
    """A running `python -m tessera.engine`, which imports its executor while it waits for its configuration."""

    def __init__(self, executor: str) -> None:
        """executor: dotted path. Raises OSError."""
        # Its workers belong to its process group, so that kill() reaches them.
        super().__init__("tessera.engine", executor, variables={"PYTHONSAFEPATH": "1"}, new_group=True, stdin=PIPE)
        self._ended = False

    def configure(self, data: bytes) -> None:
        """Sends the configuration; call once. data: the result of pack_start()."""
        assert self._process.stdin is not None
        # The process may have ended already. wait() then gives its exit code.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kills its workers too, even if it has ended: one that hangs does not notice that its engine is gone."""
        # On macOS, signalling a group that has only an ended process left raises PermissionError.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        super().end()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def executor_path(num_workers: int, num_hosts: int = 1) -> str:
    """The dotted path of the executor for this number of workers."""
    if num_hosts > 1:
        return HOSTS
    return IN_PROCESS if num_workers == 1 else WORKERS
