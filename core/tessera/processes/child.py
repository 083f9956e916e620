"""A child process that runs a module of ours. `serve` starts one before anything else, so this module imports almost
nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from tessera.config.environment import for_children

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_STANDARD_ERROR = 2


class Child:
    """A running `python -m MODULE ARGUMENTS`. What it prints goes to this process's standard error. End it with end()
    or a `with` statement."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        variables: Mapping[str, str],
        new_group: bool = False,
        dies_with_parent: bool = False,
        **options: Any,
    ) -> None:
        """variables: of its environment, besides for_children(). new_group: it leads a process group, so Ctrl-C reaches
        only this process. dies_with_parent: it calls die_with_parent() with its last argument, which is added. options:
        of Popen (stdin, pass_fds). Raises OSError."""
        command = [sys.executable, "-m", module, *arguments]
        options |= {"stdout": _STANDARD_ERROR, "env": {**for_children(), **variables}}
        if new_group:
            options["process_group"] = 0
        if dies_with_parent:
            command.append(str(os.getpid()))
        # The kernel takes the end of the thread that started a process for its parent's.
        if dies_with_parent and threading.current_thread() is not threading.main_thread():
            self._process = _lasting_thread(os.getpid()).submit(_started, command, options).result()
        else:
            self._process = _started(command, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float | None = None) -> int:
        """Waits for it to end. Returns its exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Does nothing if it has ended."""
        self._process.kill()

    def end(self) -> None:
        """Kills it if it is still running, and waits for its end. May be called again."""
        self.kill()
        self.wait()


def _started(command: list[str], options: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, **options)


@cache
def _lasting_thread(_pid: int) -> ThreadPoolExecutor:
    """A thread that lasts as long as this process. _pid: of this process; one that was forked from it has no such
    thread."""
    from concurrent.futures import ThreadPoolExecutor  # a process that starts from its main thread does not need it

    return ThreadPoolExecutor(1, thread_name_prefix="starter")
