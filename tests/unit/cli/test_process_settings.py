"""What the server asks of its process; in one of its own, since it lasts."""

from __future__ import annotations

import subprocess
import sys

ASKED = """
import gc, sys
from tessera.cli.process_settings import answer_promptly
before = gc.get_freeze_count()
answer_promptly()
print(sys.getswitchinterval() < 0.001, gc.get_freeze_count() > before)
"""


def test_threads_give_way_soon_and_the_collector_passes_over_what_stays() -> None:
    said = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "True True\n"


FREED = """
import psutil
from tessera.cli.process_settings import return_memory
return_memory()
before = psutil.Process().memory_info().rss
del (largest := [b"x" * 2**24])[:]  # freed, so that the C library would keep blocks of this size
blocks, later = [], []
for _ in range(20):
    blocks.append(b"x" * 2**22)
    later.append(b"x" * 2**16)
del blocks
print((psutil.Process().memory_info().rss - before) >> 20)
"""


def test_memory_of_large_blocks_goes_back_although_later_ones_stay() -> None:
    said = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=60, check=True)
    assert int(said.stdout) < 10  # of 80 MiB
