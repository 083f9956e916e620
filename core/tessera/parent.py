"""A process that its parent's death wakes, so that none is left that was stopped at that moment."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2) of Linux


def go_on_when_it_dies() -> None:
    """From now on the death of the thread that started this process continues it, and what watches for that death runs:
    a stopped process would never learn of it. Does nothing on another system."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
