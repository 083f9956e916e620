"""What the server asks of its process, so that it answers health checks while it writes large answers."""

from __future__ import annotations

import gc
import sys

SWITCH_SECONDS = 0.0005
"""How long the thread that writes large answers may hold the interpreter's lock while the event loop waits for it. Each
call of the system gives the lock away, and an answer takes a dozen of them: with the interpreter's own 5 ms that is a
twentieth of a second."""


def answer_promptly() -> None:
    """Call it when the start is over: its objects stay until the end, so the garbage collector, which holds up
    everything, need not look at them again."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
