"""The watch on the server's own event loop."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time

import pytest

from tessera.server.loop_watch import LIMIT, LoopWatch
from tests.server.conftest import Api

HANG = """
import asyncio, time
from tessera.server.loop_watch import ended_if_it_hangs

async def serve():
    with ended_if_it_hangs(0.5):
        await asyncio.sleep(1.5)
        print("answered", flush=True)
    time.sleep(1.5)
    print("not watched any more", flush=True)
    with ended_if_it_hangs(0.5):
        held_up_here()

def held_up_here():
    time.sleep(600)

asyncio.run(serve())
"""


def hold_up(watch: LoopWatch, before: int) -> None:
    """Blocks the loop until the watch has noticed."""
    end = time.monotonic() + 60
    while watch.stands == before and time.monotonic() < end:
        time.sleep(0.01)


async def test_says_once_what_holds_the_loop_up(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(limit=0.2)
    watch.start()
    await asyncio.sleep(0.3)
    hold_up(watch, watch.stands)
    time.sleep(0.5)  # noqa: ASYNC251 - stands on
    await watch.stop()
    said = [record.message for record in caplog.records if "in hold_up" in record.message]
    assert len(said) == 1
    assert "answered nobody" in said[0]


def test_a_loop_that_hangs_ends_the_process_with_its_stacks() -> None:
    ended = subprocess.run([sys.executable, "-c", HANG], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (1, "answered\nnot watched any more\n")
    assert "in held_up_here" in ended.stderr


async def test_metrics_count_the_stands(api: Api) -> None:
    async def stands() -> int:
        found = re.search(
            r"^tessera:event_loop_stands_total (\d+)$", (await api.client.get("/metrics")).text, re.MULTILINE
        )
        assert found is not None
        return int(found[1])

    await asyncio.sleep(0)
    assert await stands() == 0
    end = time.monotonic() + 60
    while await stands() == 0 and time.monotonic() < end:  # more than once, if the machine stops this whole process
        time.sleep(1.2 * LIMIT)  # noqa: ASYNC251 - holds the loop up
    assert await stands() >= 1
