"""What routing by prefixes costs, and what it is good for.

    python -m benchmarks.router

Prints the microseconds of processor time that the router takes for a request, without HTTP (hashing a chat's body,
choosing, and keeping the books), at several numbers of replicas. Then starts two servers with the bundled demo and
`tessera router` in front of them, and sends a trace of requests that share a few long openings, in turns through the
router and to the servers one after the other (round robin). Printed are the share of prompt tokens that were cached and
the times to the first token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import httpx
import numpy as np

from benchmarks.http_load import HOST
from benchmarks.served import free_port
from tessera.router.prompts import PromptBlocks
from tessera.router.servers import ServerPool

READY_SECONDS = 180.0
IN_PROGRESS = 100
"""Requests of each replica while the policy is measured."""
ANSWER_TOKENS = 4
_WORDS = "the a of and to in is was for on that with as it by at from this his her one two new old man day"


# ---- the router alone ------------------------------------------------------------------------------------------------


async def measure_router(replicas: int, chars: int, requests: int) -> tuple[float, float]:
    """Microseconds of processor time a request of all that the router does but HTTP: hashing the body, choosing a
    server, keeping the books. The median, and the 99th of a hundred. chars: of a prompt, of which half is shared with
    one in ten others."""
    chance = random.Random(0)
    openings = [_text(chance, chars // 2) for _ in range(10)]
    bodies = [
        json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": openings[number % 10] + _text(chance, chars // 2)}]}
        ).encode()
        for number in range(requests)
    ]
    blocks, took = PromptBlocks(sticky=False), []
    running: deque[AbstractContextManager[None]] = deque()
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
        pool = await _ready_pool(client, replicas)
        for body in bodies:
            began = time.thread_time()
            prefix = blocks.read(body, b"")
            server = pool.choose(prefix, ())
            assert server is not None
            running.append(pool.running(server, prefix))
            running[-1].__enter__()
            if len(running) > replicas * IN_PROGRESS // 10:
                running.popleft().__exit__(None, None, None)
            took.append(time.thread_time() - began)
        for entered in running:
            entered.__exit__(None, None, None)
    took = took[len(took) // 4 :]
    return statistics.median(took) * 1e6, float(np.percentile(took, 99)) * 1e6


async def _ready_pool(client: httpx.AsyncClient, replicas: int) -> ServerPool:
    """Servers that have answered their first health check."""
    pool = ServerPool(client, 4096)
    pool.update([f"http://server-{number}" for number in range(replicas)])
    watching = asyncio.create_task(pool.watch())
    while not all(server.is_ready for server in pool.servers):  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    watching.cancel()
    return pool


def _text(chance: random.Random, chars: int) -> str:
    """Common words, which have a token or two each."""
    return " ".join(chance.choices(_WORDS.split(), k=chars))[:chars]


# ---- two servers -----------------------------------------------------------------------------------------------------


@dataclass
class Round:
    """What one pass of the trace had."""

    # Seconds to the first token of each request.
    first_token_seconds: list[float] = field(default_factory=list)
    # Of all prompts, in tokens.
    num_prompt_tokens: float = 0.0
    num_cached_tokens: float = 0.0


@contextlib.asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[str]:
    """A command of Tessera that serves; its address."""
    address = f"http://{HOST}:{(port := free_port())}"
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
        [sys.executable, "-m", "tessera.cli", *arguments, "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=address) as client:
            until = time.monotonic() + READY_SECONDS
            while time.monotonic() < until:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(60)


async def cached(client: httpx.AsyncClient, servers: Sequence[str]) -> tuple[float, float]:
    """Prompt tokens so far, and those of them that were cached, of all servers."""
    totals = [0.0, 0.0]
    for server in servers:
        for line in (await client.get(f"{server}/metrics")).text.splitlines():
            for place, name in enumerate(("prompt_tokens", "prefix_cache_hits")):
                if line.startswith(f"tessera:{name}_total{{"):
                    totals[place] += float(line.rpartition(" ")[2])
    return totals[0], totals[1]


async def send(client: httpx.AsyncClient, address: str, prompt: str) -> float:
    """Seconds to the first token."""
    body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
    began, first = time.perf_counter(), 0.0
    async with client.stream("POST", f"{address}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and not first:
                first = time.perf_counter() - began
    return first


async def trace(addresses: Sequence[str], servers: Sequence[str], prompts: Sequence[str], clients: int) -> Round:
    """Sends all prompts, so many at once, to the addresses in turn."""
    result, turns = Round(), itertools.cycle(addresses)
    waiting = iter(prompts)
    async with httpx.AsyncClient(timeout=120) as client:
        before = await cached(client, servers)

        async def send_rest() -> None:
            for prompt in waiting:
                result.first_token_seconds.append(await send(client, next(turns), prompt))

        await asyncio.gather(*(send_rest() for _ in range(clients)))
        await asyncio.sleep(1.5)  # an engine that rests reports once a second
        after = await cached(client, servers)
    result.num_prompt_tokens, result.num_cached_tokens = (now - then for now, then in zip(after, before, strict=True))
    return result


async def compare(options: argparse.Namespace) -> None:
    flags = ("serve", "--kv-cache-memory-bytes", options.cache, "--disable-ui")
    async with running(*flags) as first, running(*flags) as second:
        servers = (first, second)
        async with running("router", *servers) as router:
            ways = {"router": [router], "round robin": list(servers)}
            results: dict[str, list[Round]] = {way: [] for way in ways}
            for number in range(options.rounds):
                for way, addresses in ways.items():
                    chance = random.Random(f"{number} {way}")  # prompts that nobody has cached yet
                    openings = [_text(chance, options.chars) for _ in range(options.openings)]
                    prompts = [chance.choice(openings) + _text(chance, 60) for _ in range(options.requests)]
                    results[way].append(await trace(addresses, servers, prompts, options.clients))
    for way, rounds in results.items():
        seconds = [one for each in rounds for one in each.first_token_seconds]
        share = sum(each.num_cached_tokens for each in rounds) / sum(each.num_prompt_tokens for each in rounds)
        print(
            f"{way:12} cached {share:5.1%}   first token: median {np.median(seconds) * 1e3:6.1f} ms, "
            f"99 % {np.percentile(seconds, 99) * 1e3:6.1f} ms   ({len(seconds)} requests)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=150, help="of one round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--openings", type=int, default=10)
    parser.add_argument("--chars", type=int, default=2400, help="of an opening")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--cache", default="4MiB", help="KV cache of each server")
    parser.add_argument("--alone", action="store_true", help="measure nothing but the router's own work")
    options = parser.parse_args()
    for replicas in (1, 10, 100, 1000):
        for chars in (2_000, 32_000):
            median, slowest = asyncio.run(measure_router(replicas, chars, 3000))
            print(
                f"router, {replicas:5} replicas, {chars:6} characters: median {median:6.1f} us, 99 % {slowest:6.1f} us"
            )
    if not options.alone:
        asyncio.run(compare(options))


if __name__ == "__main__":
    main()
