"""Processes that were started in a session of their own, so that what they start ends with them."""

from __future__ import annotations

import os
import signal
import subprocess


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and whatever it started, and closes what led to it."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
