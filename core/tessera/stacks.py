"""What each thread of an engine's processes does at a moment, written when the front end asks for it by a signal.

It works in a process whose threads all hang: the signal's handler needs no interpreter.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from pathlib import Path

SIGNAL = signal.SIGUSR1


def write_on_signal(folder: Path) -> None:
    """From now on the signal makes this process write its stacks into the folder; a crash, to standard error."""
    file = (folder / f"stacks.{os.getpid()}").open("w", encoding="utf-8")
    faulthandler.register(SIGNAL, file, all_threads=True)
    faulthandler.enable()


def ask(group: int) -> None:
    """All processes of a group. One that is stopped goes on, and writes before it does anything else."""
    for number in (SIGNAL, signal.SIGCONT):
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def read(folder: Path) -> str:
    """What was written so far."""
    texts = {file.suffix[1:]: file.read_text("utf-8", "replace") for file in sorted(folder.glob("stacks.*"))}
    return "\n".join(f"process {pid}:\n{text.rstrip()}" for pid, text in texts.items() if text)
