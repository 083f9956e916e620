"""The file descriptors that a command begins with: all three standard ones, and leave to open as many as the system
gives."""

from __future__ import annotations

import os
import resource
import sys

MAX_OPEN_FILES = 2**20
"""More are not asked for: some systems give a thousand times as many, and some libraries walk through all of them."""


def open_standard() -> None:
    """Opens the standard input, output and error that the caller closed (`2>&-`), on the null device. Otherwise the
    first files and sockets of this process would take their numbers, and be written to as if they were the terminal."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(null, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - until the end


def raise_limit() -> None:
    """Raises the soft limit on open files to the hard one; each connection needs a file descriptor. The limit stays
    where the system refuses, as macOS does for more than its own maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    for most in (wanted, 10_240):  # the latter is the maximum of macOS
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, soft), hard))
        except (ValueError, OSError):
            continue
        return
