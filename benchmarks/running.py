"""Processes of engines: their own environment, ended in any case, and their last line where they fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
LONGEST_RUN = 3600  # seconds


class EngineError(Exception):
    """An engine could not be run; says why in one line."""


def results(name: str, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The lines of JSON that a program writes, as they come. Raises EngineError where it fails."""
    with (
        output_file() as said,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(variables),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        ) as process,
        ended_at_the_latest(process, LONGEST_RUN),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
        if process.wait() != 0:
            raise EngineError(f"{name} ended with {process.returncode}: {last_line(said)}")


def output_file() -> IO[str]:
    """For what a process says; gone when it is closed."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


@contextlib.contextmanager
def ended_at_the_latest(process: subprocess.Popen[Any], seconds: float) -> Iterator[None]:
    """Ends the process and what it started after so many seconds, and in any case at the end of the block."""

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end()


def last_line(said: IO[str]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said if line.strip()]
    return lines[-1] if lines else "it says nothing"
