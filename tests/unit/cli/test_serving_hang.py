"""A server whose event loop hangs for good ends, for whatever started it to start it again."""

from __future__ import annotations

import subprocess
import sys

HANG = """
import asyncio, time
from types import SimpleNamespace
from tessera.cli import serving

async def start(_served, _text, _media):
    return None

async def serve(ready, _listener, _settings):
    ready.close()
    held_up_here()

def held_up_here():
    time.sleep(600)

serving.text_workers_of = lambda _config, _template: None
serving.media_workers_of = lambda _config: None
serving._import_server = lambda: SimpleNamespace(serve=serve)
serving._Served._start = start
given = dict.fromkeys(serving._Served.__dataclass_fields__)
given |= {"options": SimpleNamespace(routes=()), "supervision": SimpleNamespace(stall_seconds=0.05)}
asyncio.run(serving._Served(**given).until_end())
"""


def test_a_server_that_hangs_ends_after_ten_times_the_time_of_an_engine() -> None:
    ended = subprocess.run([sys.executable, "-c", HANG], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "in held_up_here" in ended.stderr
