"""What a process does about the one that started it: it leaves signals to it, and ends with it.

Linux tells a process that its parent died with a signal, prctl(2); on other systems it has to find out by itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def leave_signals_to_parent() -> None:
    """Ignores what a terminal (Ctrl-C, its end) and a service manager send to every process: only the parent decides
    when this one ends. A stopped process gets SIGHUP when its parent is gone; if it ignores that, it can clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def watch_parent(lifeline: int, clean_up: Callable[[], None] | None = None) -> None:
    """Ends this process when its parent is gone, even if it is busy or waits. lifeline: descriptor of a pipe or socket
    whose other end only the parent has. clean_up: called before, on the thread that watches.

    A native call that holds the interpreter's lock keeps the thread from running; see Guard and die_with_parent().
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(lifeline, 0)  # hang-ups are reported even with an empty event mask
        poll.poll()
        try:
            if clean_up is not None:
                clean_up()
        finally:
            os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def wake_at_parent_death() -> None:
    """When the thread that started this process dies, the kernel sends SIGCONT, so that whatever watches for that death
    can run; a stopped process would never notice."""
    _signal_at_parent_death(signal.SIGCONT)


def die_with_parent(parent: int) -> None:
    """When the process that started this one dies, the kernel kills this one, whatever it is doing. parent: its pid,
    the last argument of a Child with `dies_with_parent`."""
    if _signal_at_parent_death(signal.SIGKILL) and os.getppid() != parent:
        os._exit(0)  # it died before


def _signal_at_parent_death(number: signal.Signals) -> bool:
    library = ctypes.CDLL(None)
    if not hasattr(library, "prctl"):
        return False
    library.prctl(_PR_SET_PDEATHSIG, number)
    return True
