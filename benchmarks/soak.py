"""Whether a server leaks memory under mixed load: resident memory of its two processes, minute by minute.

    python -m benchmarks.soak --minutes 60

Starts `tessera serve` (with the bundled demo unless --model is given) on a free port, and sends it chats and
completions from --clients clients at once: whole, streamed, abandoned midway, with n > 1, with log probabilities, with
new and repeated prompts, and invalid ones. Memory that is reused levels off; leaked memory grows with the number of
requests, so the last line shows the growth over the second half of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.served import free_port

READY_SECONDS = 120
END_SECONDS = 30
MIB = 2**20
# A cache that fills up quickly: until then the engine's memory grows with each block that is used for the first time.
CACHE = "48MiB"
WORDS = ("the", "a", "light", "river", "stone", "seven", "under", "asks", "blue", "machine", "morning", "answer")


@dataclass(frozen=True)
class Sample:
    """The memory of both processes at one time."""

    # Since the load started.
    seconds: float
    # Finished until then.
    requests: int
    # Resident bytes of the front end's process and of the engine's.
    front: int
    engine: int
    # In the front end's event loop, from its metrics.
    tasks: int


class Clients:
    """The kinds of requests, and how often each was sent."""

    def __init__(self, http: httpx.AsyncClient, model: str, seed: int) -> None:
        self._http = http
        self._model = model
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._kinds: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("chat", self._chat),
            ("completion", self._completion),
            ("stream", self._stream),
            ("left", self._leave),
            ("n", self._several),
            ("logprobs", self._logprobs),
            ("prompts", self._prompts),
            ("error", self._error),
        ]

    async def ask_until(self, end: float) -> None:
        while time.monotonic() < end:
            kind, ask = self._random.choice(self._kinds)
            await ask()
            self.done[kind] += 1

    def _text(self) -> str:
        """A new text, or one of a few that repeat and so hit the prefix cache."""
        chance = random.Random(self._random.randrange(20)) if self._random.random() < 0.5 else self._random
        return " ".join(chance.choices(WORDS, k=chance.randrange(4, 120)))

    def _body(self, **fields: Any) -> dict[str, Any]:
        return {"model": self._model, "max_tokens": self._random.randrange(1, 48), **fields}

    def _chat_body(self, **fields: Any) -> dict[str, Any]:
        return self._body(messages=[{"role": "user", "content": self._text()}], **fields)

    async def _whole(self, path: str, body: dict[str, Any], status: int = 200) -> None:
        response = await self._http.post(path, json=body)
        if response.status_code != status:
            raise RuntimeError(f"{path} answered {response.status_code} in place of {status}: {response.text[:200]}")

    async def _chat(self) -> None:
        await self._whole("/v1/chat/completions", self._chat_body(temperature=0.8))

    async def _completion(self) -> None:
        await self._whole("/v1/completions", self._body(prompt=self._text(), temperature=0, stop=["\n\n"]))

    async def _several(self) -> None:
        await self._whole("/v1/chat/completions", self._chat_body(n=self._random.randrange(2, 5)))

    async def _logprobs(self) -> None:
        await self._whole("/v1/chat/completions", self._chat_body(logprobs=True, top_logprobs=5))
        await self._whole("/v1/completions", self._body(prompt=self._text(), logprobs=3, echo=True))

    async def _prompts(self) -> None:
        await self._whole("/v1/completions", self._body(prompt=[self._text() for _ in range(3)]))

    async def _stream(self) -> None:
        async with self._events() as lines:
            async for _ in lines:
                pass

    async def _leave(self) -> None:
        async with self._events(max_tokens=200) as lines:
            for _ in range(self._random.randrange(1, 8)):
                await anext(lines, None)

    @contextlib.asynccontextmanager
    async def _events(self, **fields: Any) -> AsyncIterator[AsyncIterator[str]]:
        body = self._chat_body(stream=True, stream_options={"include_usage": True}, **fields)
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            yield response.aiter_lines()

    async def _error(self) -> None:
        await self._whole("/v1/chat/completions", {**self._chat_body(), "temperature": -1}, 400)
        await self._whole("/v1/completions", {**self._body(prompt="x"), "model": f"none-{self._random.random()}"}, 404)
        await self._whole(f"/nothing/{self._random.random()}", {}, 404)


def resident(pid: int) -> int:
    """The process's resident memory in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def engine_of(front: int) -> int:
    """The process id of a server's engine."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{front}\n" in status.read_text() and b"tessera.engine" in (
                status.with_name("cmdline").read_bytes()
            ):
                return int(status.parent.name)
    raise RuntimeError("the server has no engine")


async def sampled(front: int, http: httpx.AsyncClient, clients: Clients, began: float) -> Sample:
    text = (await http.get("/metrics")).text
    tasks = next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("tessera:asyncio_tasks "))
    requests = clients.done.total()
    return Sample(time.monotonic() - began, requests, resident(front), resident(engine_of(front)), int(tasks))


async def watch(front: int, http: httpx.AsyncClient, clients: Clients, options: argparse.Namespace) -> list[Sample]:
    """Loads the server for options.minutes and prints a line at each interval."""
    began = time.monotonic()
    end = began + 60 * options.minutes
    asking = [asyncio.create_task(clients.ask_until(end)) for _ in range(options.clients)]
    samples = []
    print("minute  requests  front MiB  engine MiB  tasks", flush=True)
    for number in itertools.count():
        due = began + number * options.every
        if due > end:
            break
        await asyncio.wait(asking, timeout=max(0.0, due - time.monotonic()), return_when=asyncio.FIRST_EXCEPTION)
        samples.append(await sampled(front, http, clients, began))
        _print(samples[-1])
    await asyncio.gather(*asking)
    samples.append(await sampled(front, http, clients, began))
    _print(samples[-1])
    return samples


def _print(sample: Sample) -> None:
    memory = f"{sample.front / MIB:9.1f}  {sample.engine / MIB:10.1f}"
    print(f"{sample.seconds / 60:6.1f}  {sample.requests:8d}  {memory}  {sample.tasks:5d}", flush=True)


async def soak(front: int, address: str, options: argparse.Namespace) -> None:
    limits = httpx.Limits(max_connections=options.clients + 1)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as http:
        await until_ready(http)
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        clients = Clients(http, model, options.seed)
        samples = await watch(front, http, clients, options)
    print("asked:", ", ".join(f"{count} {kind}" for kind, count in sorted(clients.done.items())))
    first, last = samples[len(samples) // 2], samples[-1]
    requests = last.requests - first.requests
    for name in ("front", "engine"):
        grown = (getattr(last, name) - getattr(first, name)) / MIB
        print(f"{name}: {grown:+.1f} MiB in the second half, over {requests} requests")


async def until_ready(http: httpx.AsyncClient) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError):
            if (await http.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the server was not ready after {READY_SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the server is loaded")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two lines")
    parser.add_argument("--clients", type=int, default=8, help="requests at once")
    parser.add_argument("--model", help="in place of the bundled demo")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "tessera.cli", "serve", *([options.model] if options.model else [])]
    command += ["--port", str(port), "--kv-cache-memory-bytes", CACHE, "--disable-log-requests"]
    with subprocess.Popen(command, start_new_session=True) as server:
        try:
            asyncio.run(soak(server.pid, f"http://127.0.0.1:{port}", options))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(END_SECONDS)


if __name__ == "__main__":
    main()
