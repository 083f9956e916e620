"""The host: its processor, and the free memory of the machine and this process's cgroups."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tessera.platform import MemoryFigures

UNLIMITED = 1 << 60


def processor(system: Path = Path("/")) -> str:
    """The processor's model name."""
    for line in _text(system / "proc/cpuinfo").splitlines():
        if line.lower().startswith(("model name", "cpu\t")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def figures(system: Path = Path("/")) -> MemoryFigures:
    """Memory in bytes: the minimum of the machine's and that of each cgroup above this process."""
    total, free = _machine(system)
    for limit, used in _groups(system):
        if limit < UNLIMITED:
            total, free = min(total, limit), min(free, max(limit - used, 0))
    return MemoryFigures(total=total, free=free, host=True)


def _machine(system: Path) -> tuple[int, int]:
    said = dict(line.split(":", 1) for line in _text(system / "proc/meminfo").splitlines() if ":" in line)
    if "MemTotal" in said and "MemAvailable" in said:
        return _kib(said["MemTotal"]), _kib(said["MemAvailable"])
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    return total, total // 2  # the system does not report free memory


def _groups(system: Path) -> list[tuple[int, int]]:
    """(limit, bytes that cannot be reclaimed) of each cgroup, v1 and v2."""
    found = []
    for line in _text(system / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = system / "sys/fs/cgroup" / ("memory" if controllers else "")
        parts = Path(group.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            folder = root.joinpath(*parts[:depth])
            limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
            if limit is not None:
                used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
                found.append((limit, used - _reclaimable(folder)))
    return found


def _reclaimable(folder: Path) -> int:
    """Bytes of page cache that the kernel can reclaim."""
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _kib(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
