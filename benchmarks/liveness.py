"""How long /livez takes while the server writes log probabilities, which are its heaviest work.

    python -m benchmarks.liveness --seconds 20

The server runs the bundled demo. A process of its own asks /livez every 50 ms beside several loads in turn: requests
for 128 answers with 20 alternatives for each token, streamed and whole, and 40 streams of 3 such answers that nobody
reads. Printed are the worst answer and the 99th percentile of each, and the most memory that the server's front took
(resident, its text workers and its engine not counted). Engine, server, load and questions share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psutil

from benchmarks.front_end import NAME, served, tessera
from benchmarks.http_load import HOST
from benchmarks.served import free_port

EVERY = 0.05
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNREAD = 40
UNREAD_ANSWERS = 3
"""Of each: with 900 tokens all together have more values than the front keeps, and few enough that all are admitted."""
ANSWERS = 128
ALTERNATIVES = 20


def poll_liveness(port: int, seconds: float, times: multiprocessing.Queue[list[float]]) -> None:
    """Puts the seconds that each answer took."""
    took = []
    end = time.monotonic() + seconds
    with socket.create_connection((HOST, port)) as connection:
        while time.monotonic() < end:
            began = time.monotonic()
            connection.sendall(LIVEZ)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            if b" 200 " not in answer:
                raise RuntimeError(f"/livez answered {answer!r}")
            took.append(time.monotonic() - began)
            time.sleep(max(0.0, EVERY - took[-1]))
    times.put(took)


def begun(port: int, **fields: Any) -> socket.socket:
    """The connection of a chat."""
    chat = {
        "model": NAME, "messages": [{"role": "user", "content": "Tell me all."}], "ignore_eos": True, "logprobs": True,
        "top_logprobs": ALTERNATIVES, "temperature": 1.0, **fields,
    }  # fmt: skip
    body = json.dumps(chat).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((HOST, port))
    connection.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    return connection


def read(connection: socket.socket) -> None:
    with connection:
        answer = connection.recv(2**20)
        if b" 200 " not in answer:
            raise RuntimeError(f"an answer is not as it should be: {answer[:300]!r}")
        while connection.recv(2**20):
            pass


def answers(port: int, end: float, *, stream: bool) -> None:
    while time.monotonic() < end:
        read(begun(port, n=ANSWERS, stream=stream, max_tokens=64))


def unread(port: int, end: float) -> None:
    with ExitStack() as open_streams:
        streams = [
            open_streams.enter_context(begun(port, stream=True, n=UNREAD_ANSWERS, max_tokens=900))
            for _ in range(UNREAD)
        ]
        time.sleep(end - time.monotonic())
        heads = [stream.recv(2**10, socket.MSG_PEEK) for stream in streams]
        if not all(b" 200 " in head for head in heads):
            raise RuntimeError("not all of the unread streams were admitted")


class Front:
    """The server's own process, whose memory is looked at all the time."""

    def __init__(self, process: int) -> None:
        self._process = psutil.Process(process)
        self._peak = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while True:
                self._peak = max(self._peak, self._process.memory_info().rss)
                time.sleep(EVERY)

    def take_peak(self) -> float:
        """The most MiB since the last call."""
        peak, self._peak = self._peak, 0
        return peak / 2**20


def measured(port: int, seconds: float, load: Callable[[float], None]) -> list[float]:
    times: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    asking = multiprocessing.Process(target=poll_liveness, args=(port, seconds, times))
    asking.start()
    try:
        load(time.monotonic() + seconds)
        return times.get(timeout=60)
    finally:
        asking.kill()
        asking.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    seconds = parser.parse_args().seconds
    port = free_port()
    loads: dict[str, Callable[[float], None]] = {
        "nothing else": lambda end: time.sleep(end - time.monotonic()),
        f"n={ANSWERS}, streamed": lambda end: answers(port, end, stream=True),
        f"n={ANSWERS}, whole": lambda end: answers(port, end, stream=False),
        f"{UNREAD} unread streams": lambda end: unread(port, end),
    }
    command, variables = tessera(port, ANSWERS)
    with served(command, variables, port) as process:
        front = Front(process)
        read(begun(port, n=2, max_tokens=8))
        for name, load in loads.items():
            took = measured(port, seconds, load)
            high = statistics.quantiles(took, n=100)[98]
            print(
                f"{name:20} worst {max(took):.3f} s, 99 % within {high:.3f} s, of {len(took)}; "
                f"front {front.take_peak():.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
