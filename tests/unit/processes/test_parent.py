"""A stopped process goes on when its parent dies, and others die with theirs, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

CHILD = """
import os, sys, time
from tessera.processes.parent import wake_at_parent_death
wake_at_parent_death()
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


HELD = """
import ctypes, os, sys
from tessera.processes.parent import die_with_parent
print(os.getpid(), flush=True)
die_with_parent(int(sys.argv[-1]))
print("set", flush=True)
ctypes.PyDLL(None).sleep(600)  # without releasing the interpreter's lock
"""
STARTER = """
import sys, threading, time
from tessera.processes.child import Child
thread = threading.Thread(
    target=Child, args=("held",), kwargs={"variables": {"PYTHONPATH": sys.argv[1]}, "dies_with_parent": True}
)
thread.start()
thread.join()
time.sleep(600)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends a signal at a parent's death")


@linux
def test_a_process_that_is_held_dies_with_its_parent_and_not_with_the_thread_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr is not None
        child = int(parent.stderr.readline())
        assert parent.stderr.readline() == "set\n"
        time.sleep(0.2)
        assert state(child) == "S"
        parent.kill()
        deadline = time.monotonic() + 20
        while Path(f"/proc/{child}").exists() and state(child) not in "ZX":
            assert time.monotonic() < deadline, "it outlives its parent"
            time.sleep(0.01)


@linux
def test_a_process_whose_parent_died_before_ends_at_once() -> None:
    code = "from tessera.processes.parent import die_with_parent; die_with_parent(1 << 30); print('here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
