"""Memory that a step frees is there for the next, in a process that is the engine's own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, torch
from tessera.platform import WorkerSpec
from tessera_cpu.platform import CpuPlatform
CpuPlatform().enter_process(WorkerSpec(0, 1, (0,), threads=1, shared={shared}))
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step(): torch.zeros(40 << 20, dtype=torch.uint8)
step()
before = faults()
for _ in range(10): step()
print(faults() - before)
"""


def faults(*, shared: bool) -> int:
    program = PROGRAM.format(shared=shared)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def test_freed_memory_is_kept_but_not_in_a_users_process() -> None:
    pages = 10 * (40 << 20) // 4096
    assert faults(shared=True) > pages / 2  # what it costs where nothing is changed
    assert faults(shared=False) < pages / 4
