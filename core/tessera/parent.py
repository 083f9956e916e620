"""Wakes a stopped process when its parent dies, so that no stopped process is left behind."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # Linux prctl(2)


def go_on_when_it_dies() -> None:
    """When the thread that started this process dies, the kernel sends SIGCONT, so that whatever watches for that death
    can run; a stopped process would never notice. Does nothing on other systems than Linux."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
