"""The event loop of commands that wait for many connections at once."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where there is a uvloop, which is not so on every system."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
