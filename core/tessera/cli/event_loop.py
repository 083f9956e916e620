"""Runs asynchronous commands until they end or are interrupted."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run_until_end(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs `work` and returns its exit code; uses uvloop if installed. SIGTERM and Ctrl-C cancel it, with exit code
    0."""

    async def until_end() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(until_end())
    except asyncio.CancelledError:
        return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
