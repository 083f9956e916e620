"""Limits of a job: what the system holds a process to while it does one."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True)
class JobLimits:
    """A job's limits. seconds: of processor time; clock_seconds is how long it may have hardly any. memory_bytes:
    address space beyond what the process had before; not enforced on macOS, which has no such limit."""

    seconds: int
    memory_bytes: int

    @property
    def clock_seconds(self) -> float:
        """Finite, since a process may be stopped, or wait for its disk forever."""
        return 3.0 * self.seconds + 3.0

    def apply(self) -> None:
        """Applies the limits to this process from now on."""
        used = int(time.process_time()) + 1
        _limit(resource.RLIMIT_CPU, used + self.seconds)
        if sys.platform == "linux":
            pages = int(Path("/proc/self/statm").read_bytes().split(maxsplit=1)[0])
            _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + self.memory_bytes)


def _limit(kind: int, maximum: int) -> None:
    """Sets the soft limit. The hard one stays: `ulimit` sets both, and only a privileged process may raise it again."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (maximum if hard == resource.RLIM_INFINITY else min(maximum, hard), hard))
