"""Processes of engines: their own environment, ended in any case, and their last line where they fail."""

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
LONGEST_END = 10  # seconds until one that was asked to end is killed


class EngineError(Exception):
    """An engine could not be run; says why in one line."""


def results(name: str, command: Sequence[str], variables: Mapping[str, str]) -> Generator[dict[str, Any]]:
    """The lines of JSON that a program writes, as they come. It goes on, and has a line of input to read, when the next
    result is asked for. Raises EngineError where it fails."""
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
            with contextlib.suppress(BrokenPipeError):  # it may have ended, which its end tells
                os.write(process.stdin.fileno(), b"\n")  # not kept for a second try, which closing would be
        if process.wait() != 0:
            raise EngineError(f"{name} ended with {process.returncode}: {last_line(said)}")


def output_file() -> IO[str]:
    """For what a process says; gone when it is closed."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


@contextlib.contextmanager
def ended_at_the_latest(process: subprocess.Popen[Any], seconds: float) -> Iterator[None]:
    """Ends the process and what it started after so many seconds, and in any case at the end of the block."""

    def end(how: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end(signal.SIGTERM)  # shared memory and sockets are given back by those that hear it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_END)
        end()


@contextlib.contextmanager
def at_rest(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Stops the process and what it started while another one has the machine: some look out for work all the time."""

    def tell(how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)

    tell(signal.SIGSTOP)
    try:
        yield
    finally:
        tell(signal.SIGCONT)


def last_line(said: IO[str]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said if line.strip()]
    return lines[-1] if lines else "it says nothing"
