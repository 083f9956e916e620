"""Helpers for measured processes: keep stdout free for results, and report peak memory. Imports only the standard
library, since it runs in each peer's environment."""

from __future__ import annotations

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
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # the process has ended
            continue
        if "VmHWM" in fields:  # kernel threads have no memory
            number = int(fields["Pid"])
            parents[number] = int(fields["PPid"])
            peaks[number] = int(fields["VmHWM"].split()[0]) * 1024
    if first not in peaks:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    ours = {first}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(peaks[number] for number in ours)
