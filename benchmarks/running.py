"""Runs engines' processes: in their own environment, always ended, and reported with their last line if they fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
LONGEST_RUN = 3600  # seconds
LONGEST_END = 10  # seconds until a process that was asked to end is killed


class EngineError(Exception):
    """An engine could not be run; the message says why in one line."""


def results(name: str, command: Sequence[str], variables: Mapping[str, str]) -> Generator[dict[str, Any]]:
    """Yields the JSON lines that a program prints, as they arrive. The program continues, and receives a line of input,
    when the next result is requested. Raises EngineError if it fails."""
    with (
        output_file() as said,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        ) as process,
        ended_at_the_latest(process, LONGEST_RUN),
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        while line := process.stdout.readline():
            with at_rest(process):
                yield json.loads(line)
            with contextlib.suppress(BrokenPipeError):  # the program may have ended; its exit status tells
                os.write(process.stdin.fileno(), b"\n")  # unbuffered, so that closing does not try to write it again
        if process.wait() != 0:
            raise EngineError(f"{name} ended with {process.returncode}: {last_line(said)}")


def output_file() -> IO[str]:
    """A file for a process's output, deleted when it is closed."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


@contextlib.contextmanager
def ended_at_the_latest(process: subprocess.Popen[Any], seconds: float) -> Iterator[None]:
    """Kills the process and everything it started after this many seconds, and in any case at the end of the block."""

    def end(how: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end(signal.SIGTERM)  # gives processes that handle it the chance to release shared memory and sockets
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_END)
        end()


@contextlib.contextmanager
def at_rest(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Stops the process and its children while another one is measured, since some of them spin for work."""

    def tell(how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)

    tell(signal.SIGSTOP)
    try:
        yield
    finally:
        tell(signal.SIGCONT)


def last_line(output: IO[str]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output if line.strip()]
    return lines[-1] if lines else "it says nothing"
