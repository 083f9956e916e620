"""Processor time that a process has used, by itself and with its children."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tessera.processes.processor_time import _seconds_in_ticks, processor_seconds, processor_seconds_with_children

BUSY = """
import sys, time
while time.process_time() < 0.3:
    pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it of another process")
def test_a_child_that_worked_counts_and_one_that_is_gone_does_not() -> None:
    before = processor_seconds_with_children()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 0.25 <= processor_seconds(child.pid) < 30
        assert _seconds_in_ticks(child.pid) == pytest.approx(processor_seconds(child.pid), abs=0.05)
        assert processor_seconds_with_children() - before >= 0.25
        child.communicate()
    assert processor_seconds(child.pid) == 0.0
    assert processor_seconds_with_children() == pytest.approx(time.process_time(), abs=0.5)
