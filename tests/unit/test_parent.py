"""A stopped process goes on when its parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

CHILD = """
import os, sys, time
from tessera import parent
parent.go_on_when_it_dies()
print(os.getpid(), flush=True)
sys.stdin.read()  # to the end of the pipe, which is the parent's
open(sys.argv[1], "w").close()
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE)
time.sleep(60)
"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_process_goes_on_when_its_parent_dies(tmp_path: Path) -> None:
    """The parent's session has another member that lives, so that no process group is orphaned: the system itself wakes
    those of a group that is."""
    mark = tmp_path / "mark"
    command = [sys.executable, "-c", PARENT, CHILD, str(mark)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        deadline = time.monotonic() + 20
        try:
            os.kill(child, signal.SIGSTOP)
            while state(child) != "T":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            parent.kill()
            while not mark.exists():
                assert time.monotonic() < deadline, state(child)
                time.sleep(0.01)
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
