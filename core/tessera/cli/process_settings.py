"""What the server asks of its process: to answer health checks while it writes large answers, and to give back
memory."""

from __future__ import annotations

import ctypes
import gc
import sys

SWITCH_SECONDS = 0.0005
"""How long the thread that writes large answers may hold the interpreter's lock while the event loop waits for it. Each
call of the system gives the lock away, and an answer takes a dozen of them: with the interpreter's own 5 ms that is a
twentieth of a second."""
LARGE_BLOCK = 1 << 20
_M_MMAP_THRESHOLD = -3  # mallopt's, of glibc


def return_memory() -> None:
    """Blocks of at least LARGE_BLOCK bytes, such as bodies and their texts, go back to the system when they are freed.
    By itself glibc takes the first large block that is freed for a sign that more will come, and from then on keeps
    blocks of up to that size, of which any that is still in use holds all below it. Other C libraries do as they do."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)


def answer_promptly() -> None:
    """Call it when the start is over: its objects stay until the end, so the garbage collector, which holds up
    everything, need not look at them again."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
