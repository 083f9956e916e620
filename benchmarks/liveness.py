"""How long /livez takes while the server writes log probabilities, which are its heaviest work.

    python -m benchmarks.liveness --seconds 20

The server runs the bundled demo. A process of its own asks /livez every 50 ms beside several loads in turn: requests
for 128 answers with 20 alternatives for each token, streamed and whole, and 40 such streams that nobody reads. Printed
are the worst answer and the 99th percentile of each. Engine, server, load and questions share the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.front_end import NAME, served, tessera
from benchmarks.http_load import HOST
from benchmarks.served import free_port

EVERY = 0.05
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNREAD = 40
ANSWERS = 128
ALTERNATIVES = 20


def asked(port: int, seconds: float, times: multiprocessing.Queue[list[float]]) -> None:
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
        for _ in range(UNREAD):
            open_streams.enter_context(begun(port, stream=True, max_tokens=4000))
        time.sleep(end - time.monotonic())


def measured(port: int, seconds: float, load: Callable[[float], None]) -> list[float]:
    times: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    asking = multiprocessing.Process(target=asked, args=(port, seconds, times))
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
    with served(command, variables, port):
        read(begun(port, n=2, max_tokens=8))
        for name, load in loads.items():
            took = measured(port, seconds, load)
            high = statistics.quantiles(took, n=100)[98]
            print(f"{name:20} worst {max(took):.3f} s, 99 % within {high:.3f} s, of {len(took)}", flush=True)


if __name__ == "__main__":
    main()
