"""What the server asks of its process; in one of its own, since it lasts."""

from __future__ import annotations

import subprocess
import sys

ASKED = """
import gc, sys
from tessera.cli.own_process import answer_promptly
before = gc.get_freeze_count()
answer_promptly()
print(sys.getswitchinterval() < 0.001, gc.get_freeze_count() > before)
"""


def test_threads_give_way_soon_and_the_collector_passes_over_what_stays() -> None:
    said = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "True True\n"
