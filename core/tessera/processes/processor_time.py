"""Processor time of processes, which tells one that works from one that waits."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

_CPUCLOCK_SCHED = 2  # of the clocks that clock_getcpuclockid(3) gives for processes
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """What a process has used; 0.0 if it is gone, or where the system does not say."""
    if sys.platform == "linux":
        with suppress(OSError):
            return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    return _seconds_in_ticks(pid)


def _seconds_in_ticks(pid: int) -> float:
    """By /proc, whose ticks are too coarse to tell a process that waits from one that works a little."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    # The process name may contain anything, so split after it. The rest starts with field 3; user and system time are
    # fields 14 and 15.
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS_A_SECOND


def processor_seconds_with_children() -> float:
    """What this process and, where /proc tells, its children have used."""
    return time.process_time() + sum(map(processor_seconds, _children()))


def _children() -> list[int]:
    try:
        pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(pid) for pid in pids.split()]
