"""Whether health checks tell the truth while a server gets far more requests than it can answer.

    python -m benchmarks.overload --minutes 10

Starts `tessera serve` with the bundled demo, measures how many requests a second it answers, and then sends --times as
many, without waiting for answers. Meanwhile a process of its own asks /health, /readyz and /livez each second. Half-way
the engine's process is stopped (SIGSTOP), as a hang would stop it. Printed are the answers by their status, the health
checks that failed outside the hang, the slowest of them, and how long the hang went unnoticed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import httpx

from benchmarks.http_load import HOST
from benchmarks.served import free_port
from benchmarks.soak import END_SECONDS, engine_of, until_ready

CHECKS = ("/health", "/readyz", "/livez")
ABOUT_A_HANG = 90.0
"""Seconds after the engine was stopped in which it may be noticed, restarted and ready again."""
CAPACITY_SECONDS = 10.0
TOKENS = 768  # so that what a client can send is many times what a server can answer


@dataclass(frozen=True)
class Check:
    """began: on the monotonic clock, which all processes share. status: 0 for no answer."""

    path: str
    began: float
    seconds: float
    status: int


def watch(address: str, results: Connection) -> None:
    """Sends a Check for each health check, until the other end is closed."""
    with httpx.Client(base_url=address, timeout=20) as http, contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        while True:
            for path in CHECKS:
                began = time.monotonic()
                try:
                    status = http.get(path).status_code
                except httpx.HTTPError:
                    status = 0
                results.send(Check(path, began, time.monotonic() - began, status))
            time.sleep(1)


def collected(results: Connection) -> list[Check]:
    """All that watch() sends."""
    checks: list[Check] = []
    with contextlib.suppress(EOFError):
        while True:
            checks.append(results.recv())
    return checks


class Load:
    """Requests for chats on one port. statuses: of the answers; 0 for none, and broken says why."""

    def __init__(self, port: int) -> None:
        body = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": TOKENS, "ignore_eos": True}
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
        self._port = port
        self.statuses: Counter[int] = Counter()
        self.retry_after: Counter[bool] = Counter()
        self.broken: Counter[str] = Counter()

    async def ask(self) -> int:
        """The status of the answer."""
        status = 0
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port)
            try:
                writer.write(self._request)
                answer = await reader.read()
                head = answer.partition(b"\r\n\r\n")[0].lower()
                status = int(head.split(maxsplit=2)[1])
                if status in (429, 503):
                    self.retry_after[b"\r\nretry-after:" in head] += 1
            finally:
                writer.close()
        except (OSError, ValueError, IndexError) as error:
            self.broken[errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)] += 1
        self.statuses[status] += 1
        return status

    async def capacity(self, clients: int) -> float:
        """Requests answered a second, by clients that each ask again when they have an answer."""
        end = time.monotonic() + CAPACITY_SECONDS
        done = 0

        async def client() -> None:
            nonlocal done
            while time.monotonic() < end:
                status = await self.ask()
                done += status == 200

        await asyncio.gather(*(client() for _ in range(clients)))
        return done / CAPACITY_SECONDS

    async def flood(self, rate: float, seconds: float) -> int:
        """Sends `rate` requests a second and does not wait for their answers until the end. Returns how many."""
        began, sent = time.monotonic(), 0
        running: set[asyncio.Task[int]] = set()
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * rate:
                task = asyncio.create_task(self.ask())
                running.add(task)
                task.add_done_callback(running.discard)
                sent += 1
            await asyncio.sleep(0.005)
        for task in running:
            task.cancel()
        await asyncio.wait(running or {asyncio.create_task(asyncio.sleep(0))})
        return sent


async def hang(front: int, after: float) -> float:
    """Stops the engine's process once `after` seconds have passed. Returns when that was."""
    await asyncio.sleep(after)
    engine = engine_of(front)
    os.kill(engine, signal.SIGSTOP)
    stopped = time.monotonic()
    print(f"stopped the engine, process {engine}", flush=True)
    return stopped


def told(checks: Sequence[Check], stopped: float) -> list[str]:
    """What the health checks said."""
    lines = []
    for path in CHECKS:
        own = [check for check in checks if check.path == path]
        outside = [check for check in own if not stopped <= check.began < stopped + ABOUT_A_HANG]
        wrong = Counter(check.status for check in outside if check.status != 200)
        slowest = max(check.seconds for check in own)
        lines.append(
            f"{path}: {len(own)} checks, {sum(wrong.values())} of {len(outside)} outside the hang failed "
            f"{dict(wrong) or ''}, the slowest took {slowest:.2f} s"
        )
    for path in CHECKS[:2]:
        own = [check for check in checks if check.path == path and check.began >= stopped]
        failed = next((check.began + check.seconds - stopped for check in own if check.status == 503), None)
        ready = next(
            (c.began - stopped for c in own if failed and c.began > stopped + failed and c.status == 200), None
        )
        noticed = "never" if failed is None else f"after {failed:.1f} s"
        again = "never" if ready is None else f"after {ready:.1f} s"
        lines.append(f"{path}: the hang was noticed {noticed}, and over {again}")
    return lines


async def run(server: subprocess.Popen[bytes], port: int, options: argparse.Namespace) -> None:
    address = f"http://{HOST}:{port}"
    async with httpx.AsyncClient(base_url=address, timeout=20) as http:
        await until_ready(http)
    load = Load(port)
    capacity = await load.capacity(options.clients)
    load.statuses.clear()
    load.broken.clear()
    print(f"answers {capacity:.1f} requests a second, of {TOKENS} tokens", flush=True)
    seconds = 60 * options.minutes
    stopping = asyncio.create_task(hang(server.pid, seconds / 2))
    spawn = get_context("spawn")
    results, end = spawn.Pipe(duplex=False)
    watching = spawn.Process(target=watch, args=(address, end), daemon=True)
    watching.start()
    end.close()
    collecting = asyncio.create_task(asyncio.to_thread(collected, results))
    sent = await load.flood(options.times * capacity, seconds)
    watching.terminate()
    checks = await collecting
    print(f"sent {sent} requests, {sent / seconds:.0f} a second: {sent / seconds / capacity:.1f} times what it answers")
    print("answers by status:", dict(sorted(load.statuses.items())), "with Retry-After:", dict(load.retry_after))
    print("without an answer:", dict(load.broken))
    print("\n".join(told(checks, await stopping)))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the server is overloaded")
    parser.add_argument("--times", type=float, default=20.0, help="requests sent, over those that it can answer")
    parser.add_argument("--clients", type=int, default=64, help="requests at once while that is measured")
    options = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "tessera.cli", "serve", "--port", str(port), "--disable-log-requests"]
    with subprocess.Popen(command, start_new_session=True) as server:
        try:
            asyncio.run(run(server, port, options))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(END_SECONDS)


if __name__ == "__main__":
    main()
