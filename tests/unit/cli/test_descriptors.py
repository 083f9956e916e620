"""A command starts whichever standard descriptors are closed, and may open as many files as the system lets it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tessera.cli.descriptors import raise_limit

STANDARD = """
import os, sys
from tessera.cli.descriptors import open_standard
open_standard()
assert os.open(os.devnull, os.O_RDONLY) > 2
for stream in (sys.stdout, sys.stderr):
    print("x", file=stream, flush=True)
assert sys.stdin.read() == ""
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_descriptors_are_opened_on_the_null_device(closed):
    script = f'exec "$0" -c "$1" {closed}'
    done = subprocess.run(["sh", "-c", script, sys.executable, STANDARD], input=b"", timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_every_command_begins_with_them(closed):
    name = "stdout" if closed == ">&-" else "stderr"
    code = f"""
import sys
from tessera.cli import program
program.run = lambda arguments: sys.{name}.write("x") - 1
program.main([])
"""
    done = subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code], timeout=60, check=False)
    assert done.returncode == 0


def test_the_limit_on_open_files_is_raised_to_the_hard_one():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = 512 if before[1] == resource.RLIM_INFINITY else min(512, before[1])
    script = (
        "import resource; from tessera.cli.descriptors import raise_limit; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard})); raise_limit(); "
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(hard), str(hard)]


def test_a_limit_that_the_system_does_not_raise_stays(monkeypatch):
    def refused(kind, limits):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refused)
    raise_limit()
