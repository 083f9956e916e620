"""Cuts off clients that take nothing of what waits for them."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios

LOOKS = 8
"""How often a client is looked at within the time it has."""


class ReaderWatch:
    """Aborts a connection whose client takes nothing for `seconds`. What counts is what leaves this machine, or is read
    on it: the event loop's buffer alone does not tell, since the kernel takes nothing more from it until a third of its
    own, which may be megabytes, is empty."""

    def __init__(self, transport: asyncio.Transport, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._seconds = seconds
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waits = (0, 0)
        self._since = 0.0

    def start(self) -> None:
        """The buffer is full: from now on the client has to read."""
        self._since = self._loop.time()
        self._waits = self._waiting()
        self._look_later()

    def stop(self) -> None:
        """There is room again, or no connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._seconds / LOOKS, self._look)

    def _look(self) -> None:
        waits, now = self._waiting(), self._loop.time()
        if waits != self._waits:  # either may also grow, by what the layers of TLS pass on as the client takes some
            self._waits, self._since = waits, now
        if now - self._since >= self._seconds:
            self._transport.abort()
        else:
            self._look_later()

    def _waiting(self) -> tuple[int, int]:
        """Bytes in the event loop's buffer, and in the kernel's."""
        return self._transport.get_write_buffer_size(), _in_kernel(self._transport)


def _in_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not acknowledged, or read from a Unix socket. 0 where the system does not tell."""
    try:
        # Linux has this for sockets too, as SIOCOUTQ.
        count = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)
