"""Memory that a step frees is there for the next and comes in large pages, in a process that is the engine's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENTER = """
import resource, torch
from tessera.platform import WorkerSpec
from tessera_cpu.platform import CpuPlatform
CpuPlatform().enter_process(WorkerSpec(0, 1, (0,), threads=1, shared={shared}))
"""
FAULTS = """
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step(): torch.zeros(40 << 20, dtype=torch.uint8)
step()
before = faults()
for _ in range(10): step()
print(faults() - before)
"""


LARGE_PAGES = """
kept = [torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(64)]
print(next(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def run(program: str, *, shared: bool) -> int:
    whole = ENTER.format(shared=shared) + program
    return int(subprocess.run([sys.executable, "-c", whole], check=True, capture_output=True, text=True).stdout)


def test_freed_memory_is_kept_but_not_in_a_users_process() -> None:
    pages = 10 * (40 << 20) // 4096
    assert run(FAULTS, shared=True) > pages / 2  # what it costs where nothing is changed
    assert run(FAULTS, shared=False) < pages / 4


@pytest.mark.skipif(
    not SETTING.exists() or "[madvise]" not in SETTING.read_text(), reason="large pages are not given on request here"
)
def test_memory_comes_in_large_pages_but_not_in_a_users_process() -> None:
    kib = 64 << 10
    assert run(LARGE_PAGES, shared=True) < kib / 2
    assert run(LARGE_PAGES, shared=False) > kib / 2
