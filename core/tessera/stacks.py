"""Stack traces of all threads of an engine's processes, written when the front end asks for them with a signal.

This works even if every thread of a process hangs: the signal handler does not need the interpreter.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from pathlib import Path

SIGNAL = signal.SIGUSR1


def write_on_signal(folder: Path) -> None:
    """Makes this process write its stacks into the folder on SIGNAL, and to standard error on a crash."""
    file = (folder / f"stacks.{os.getpid()}").open("w", encoding="utf-8")
    faulthandler.register(SIGNAL, file, all_threads=True)
    faulthandler.enable()


def ask(group: int) -> None:
    """Asks all processes of a process group. A stopped process is continued, and writes before it does anything
    else."""
    for number in (SIGNAL, signal.SIGCONT):
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def read(folder: Path) -> str:
    """The stacks written so far."""
    texts = {file.suffix[1:]: file.read_text("utf-8", "replace") for file in sorted(folder.glob("stacks.*"))}
    return "\n".join(f"process {pid}:\n{text.rstrip()}" for pid, text in texts.items() if text)
