"""The machine that a comparison runs on, and how much of it other processes use."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def processor() -> str:
    """The processor's name according to the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def describe() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor()}, {len(cores())} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def busy(seconds: float) -> float | None:
    """Watches for that long and returns the fraction of all cores that is in use, or taken by another virtual machine;
    None if it cannot be determined."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None:
        return None
    used, idle = (later - earlier for later, earlier in zip(after, before, strict=True))
    return used / (used + idle) if used + idle else 0.0


def _ticks() -> tuple[int, int] | None:
    """Used and idle ticks since the system started."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, idle, waiting, interrupts, soft, stolen = map(int, fields)
    return user + nice + system + interrupts + soft + stolen, idle + waiting
