"""How a benchmark runs: its event loop and its progress."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tessera.cli.event_loop import loop_factory
from tessera.cli.progress import ProgressLine
from tessera.log import LastingStream
from tessera.platform import Progress


def run(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """An exit code. SIGTERM and Ctrl-C end it in order."""

    async def until_end() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(until_end())
    except asyncio.CancelledError:
        return 0


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that shows how many are done."""
    line = ProgressLine(LastingStream(sys.stderr))
    line(Progress(what, 0, total))
    try:
        yield lambda done: line(Progress(what, done, total))
    finally:
        line.close()
