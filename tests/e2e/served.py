"""`tessera serve` as its user starts it: a process, its port, its log."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class Served:
    """`with Served([...]) as server:` starts it and waits until it is ready. seconds: from process start to that."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        program: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        ready_within: float = 90.0,
        wait: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """wait: until it is ready; otherwise until its port answers. tls: with which it is asked that, by HTTPS."""
        self.environment, self.folder = environment, folder
        self.port = free_port()
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._tls = tls
        self.log, self.ready_within, self.wait = log, ready_within, wait
        base = list(program) or [sys.executable, "-m", "tessera.cli"]
        self.command = [*base, "serve", *arguments, "--port", str(self.port)]

    def __enter__(self) -> Self:
        began = time.monotonic()
        self.log.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, env=self.environment, cwd=self.folder
            )
        while self.status("/readyz") not in ((200,) if self.wait else (200, 503)):
            if self.process.poll() is not None or time.monotonic() - began > self.ready_within:
                self.process.kill()
                raise AssertionError(f"not ready, exit code {self.process.poll()}:\n{self.log.read_text()}")
            time.sleep(0.02)
        self.seconds = time.monotonic() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            finally:
                self.process.kill()

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5, context=self._tls) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def engine_pid(self) -> int:
        """Of the newest engine, as the log names it."""
        return int(re.findall(r"engine process pid (\d+)", self.log.read_text())[-1])


def free_port() -> int:
    """Of those that the kernel gives to nobody who leaves the choice to it, so that no connection has taken it by the
    time that a server listens there."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    while True:
        port = random.randrange(max(first - 12_000, 1024), first)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
