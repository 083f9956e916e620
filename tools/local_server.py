"""A server of this machine that a tool starts and ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
STARTING_SECONDS = 60.0
ENDING_SECONDS = 60.0
TESSERA = ("-m", "tessera.cli", "serve")
LIMITED = ("--max-model-len", "256", "--disable-log-requests", "--kv-cache-memory-bytes", "64MiB")
"""So that no answer of the bundled demo takes long."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def started(
    arguments: Sequence[str], port: int, *, log: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once it is ready; it is ended when the block ends, and with it if the tool is told to end. arguments:
    what Python runs. log: for what it prints. Raises TimeoutError, or RuntimeError if it ends."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    server = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        _wait(server, port)
        yield server
    finally:
        server.terminate()
        try:
            server.wait(ENDING_SECONDS)
        finally:
            server.kill()
            signal.signal(signal.SIGTERM, before)


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + STARTING_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"The server ended with exit code {server.returncode}.")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"The server was not ready within {STARTING_SECONDS:.0f} s.")
