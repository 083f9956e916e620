"""A small process beside an engine's that ends it when its parent is gone, whatever it is doing.

watch_parent() is a thread of the engine's interpreter, and cannot run while a native call holds the interpreter's
lock: a kernel that never returns, a driver that hangs. A death signal (PR_SET_PDEATHSIG) would need no thread, but
leaves no time to clean up, belongs to the parent's thread rather than its process, and exists on Linux alone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from typing import NoReturn

from tessera import stacks

GRACE = 2.0  # seconds that the engine has to end by itself


class Guard:
    """Forks the guard from the calling process, which must have no other threads yet. lifeline: a pipe's descriptor
    whose other end only the parent has, so that it hangs up when the parent is gone. The guard ends with the caller."""

    def __init__(self, lifeline: int) -> None:
        theirs, self._ours = os.pipe()
        if os.fork() == 0:
            os.close(self._ours)
            _watch(lifeline, theirs)
        os.close(theirs)

    def clean(self, folder: str) -> None:
        """Tells the guard which folder to remove once it has ended the processes. Call at most once."""
        os.write(self._ours, folder.encode())


def _watch(lifeline: int, engine: int) -> NoReturn:
    """engine: a descriptor that the folder's name comes from, and that hangs up when the engine is gone."""
    signal.signal(stacks.SIGNAL, signal.SIG_IGN)  # it goes to all of the group
    leads = os.getpgrp() == os.getppid()
    folder = b""
    poll = select.poll()
    poll.register(lifeline, 0)  # hang-ups are always reported
    poll.register(engine, select.POLLIN)
    while lifeline not in (ready := [descriptor for descriptor, _ in poll.poll()]):
        if engine in ready and not (said := os.read(engine, select.PIPE_BUF)):
            poll.unregister(engine)
            if not poll.poll(GRACE * 1000):
                os._exit(0)  # the parent is there, and cleans up
            break
        folder += said
    time.sleep(GRACE)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    if leads:
        os.killpg(0, signal.SIGKILL)  # the engine, its workers and this process
    os._exit(0)
