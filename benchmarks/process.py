"""Helpers for measured processes: keep stdout free for results, and report peak memory. Imports only the standard
library, since it runs in each peer's environment."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import TextIO


def claim_stdout() -> TextIO:
    """Reserves standard output for results; what libraries print goes to standard error."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return results


def peak_bytes(root: int | None = None) -> int:
    """The sum of peak resident memory of a process (default: this one) and its descendants, each at its own peak."""
    first = os.getpid() if root is None else root
    peaks = {}
    for number in _tree(first):
        with contextlib.suppress(OSError):  # the process has ended
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines())
            if "VmHWM" in fields:
                peaks[number] = int(fields["VmHWM"].split()[0]) * 1024
    if first not in peaks:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return sum(peaks.values())


def processor_seconds(root: int) -> float:
    """What a process and its descendants that still run have used."""
    used = 0
    for number in _tree(root):
        with contextlib.suppress(OSError):  # the process has ended
            used += sum(map(int, _fields(number)[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> set[int]:
    """The ids of a process and its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            parents[int(folder.name)] = int(_fields(int(folder.name))[1])
    ours = {root}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return ours


def _fields(number: int) -> list[str]:
    """Those of a process's stat file from its state on."""
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
