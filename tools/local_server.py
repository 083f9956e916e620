"""A server of this machine that a tool starts and stops."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[1]
STARTING_SECONDS = 60.0


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def started(arguments: Sequence[str], port: int) -> subprocess.Popen[bytes]:
    """A server, once it is ready. arguments: what Python runs. Raises TimeoutError."""
    server = subprocess.Popen([sys.executable, *arguments], cwd=ROOT)
    deadline = time.monotonic() + STARTING_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                return server
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise TimeoutError("The server did not start.")
