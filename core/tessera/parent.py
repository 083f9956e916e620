"""What happens to a process when the one that started it dies. Linux sends a signal, prctl(2); on other systems a
process has to find out by itself."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

_PR_SET_PDEATHSIG = 1


def go_on_when_it_dies() -> None:
    """When the thread that started this process dies, the kernel sends SIGCONT, so that whatever watches for that death
    can run; a stopped process would never notice."""
    _at_its_death(signal.SIGCONT)


def end_when_it_dies(parent: int) -> None:
    """When the process that started this one dies, the kernel kills this one, whatever it is doing. parent: its pid,
    which start() has given as the last argument."""
    if _at_its_death(signal.SIGKILL) and os.getppid() != parent:
        os._exit(0)  # it died before


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process that calls end_when_it_dies() with its last argument, which is added. options: of Popen. Raises
    OSError.

    The kernel takes the end of the thread that started a process for its parent's, so the thread must last as long as
    this process.
    """
    command = [*command, str(os.getpid())]

    def popen() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    if threading.current_thread() is threading.main_thread():
        return popen()
    return _starter(os.getpid()).submit(popen).result()


@cache
def _starter(_pid: int) -> ThreadPoolExecutor:
    """A thread that lasts. _pid: of this process; one that was forked from it has no such thread."""
    return ThreadPoolExecutor(1, thread_name_prefix="starter")


def _at_its_death(number: signal.Signals) -> bool:
    library = ctypes.CDLL(None)
    if not hasattr(library, "prctl"):
        return False
    library.prctl(_PR_SET_PDEATHSIG, number)
    return True
