"""The runtime of a process, which starts when it is first asked for a device's memory, or with the group of workers."""

from __future__ import annotations

from threading import Event

started = Event()
