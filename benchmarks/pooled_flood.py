"""Chats beside a flood of texts that are embedded by the same model: python -m benchmarks.pooled_flood MODEL

Measured are the milliseconds between tokens of chats that stream, alone and while clients send texts to embed, one
after the other; and the tokens that are embedded, beside chats and alone. The parts take turns, and a ratio is that of
one round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from benchmarks import machine
from benchmarks.http_load import HOST, percentile
from benchmarks.served import free_port
from benchmarks.soak import until_ready

VOCAB = 1000
"""Tokens are drawn from the first ones."""
ANSWER = 256
"""Tokens of a chat's answer; another one begins behind it."""
PARTS = {"alone": (True, False), "beside": (True, True), "flood": (False, True)}
"""Whether chats run, and whether texts are embedded."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooled_flood", description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", help="as of tessera serve")
    parser.add_argument("--chats", type=int, default=4, help="that run (4)")
    parser.add_argument("--clients", type=int, default=32, help="that send texts (32)")
    parser.add_argument("--tokens", type=int, default=128, help="of a text, at most; at least half as many (128)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part (10)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options, served = parser.parse_known_args(arguments)
    rounds = _measured(options, served)
    record = {
        "date": datetime.now(UTC).date().isoformat(), "machine": machine.describe(), "chats": options.chats,
        "clients": options.clients, "tokens": options.tokens, "seconds": options.seconds, "rounds": rounds,
    }  # fmt: skip
    for line in report(rounds):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1), encoding="utf-8")


def report(rounds: Sequence[dict[str, dict[str, Any]]]) -> list[str]:
    """The lines of what was measured."""
    lines = []
    for name in PARTS:
        parts = [one[name] for one in rounds]
        cells = [f"{name:8}"]
        if PARTS[name][0]:
            middles, tails = ([1e3 * percentile(part["gaps"], share) for part in parts] for share in (50, 95))
            longest = 1e3 * max(max(part["gaps"]) for part in parts)
            cells.append(f"{statistics.median(middles):7.1f} ms between tokens, 95th percentile")
            cells.append(f"{statistics.median(tails):.1f}, longest {longest:.0f}")
        if PARTS[name][1]:
            cells.append(f"{statistics.median(part['embedded'] for part in parts):9,.0f} tokens/s embedded")
        lines.append("  ".join(cells))
    for share, called in ((50, "Median"), (95, "95th percentile")):
        ratios = [percentile(one["beside"]["gaps"], share) / percentile(one["alone"]["gaps"], share) for one in rounds]
        lines.append(
            f"{called} beside over alone: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        )
    return lines


def _measured(options: argparse.Namespace, served: Sequence[str]) -> list[dict[str, dict[str, Any]]]:
    port = free_port()
    command = [sys.executable, "-m", "tessera.cli", "serve", options.model, "--host", HOST, "--port", str(port)]
    command += ["--served-model-name", "bench", "--convert", "embed", "--disable-log-requests", *served]
    with subprocess.Popen(command) as server:
        try:
            return asyncio.run(_rounds(options, port))
        finally:
            server.terminate()


async def _rounds(options: argparse.Namespace, port: int) -> list[dict[str, dict[str, Any]]]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=600, limits=limits) as http:
        await until_ready(http)
        await _part(http, options, chats=True, flood=True)
        return [
            {name: await _part(http, options, chats=chats, flood=flood) for name, (chats, flood) in PARTS.items()}
            for _ in range(options.rounds)
        ]


async def _part(http: httpx.AsyncClient, options: argparse.Namespace, *, chats: bool, flood: bool) -> dict[str, Any]:
    gaps: list[float] = []
    embedded = [0]
    rng = random.Random(options.seconds)
    running = [_chat(http, rng, gaps) for _ in range(options.chats if chats else 0)]
    running += [_embed(http, rng, options.tokens, embedded) for _ in range(options.clients if flood else 0)]
    tasks = [asyncio.create_task(one) for one in running]
    await asyncio.sleep(options.seconds / 5)
    gaps.clear()
    began, embedded[0] = time.perf_counter(), 0
    await asyncio.wait(tasks, timeout=options.seconds)
    figures = {"gaps": [*gaps], "embedded": embedded[0] / (time.perf_counter() - began)}
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, asyncio.CancelledError):
            raise result or RuntimeError("a client ended")
    return figures


async def _chat(http: httpx.AsyncClient, rng: random.Random, gaps: list[float]) -> None:
    while True:
        body = {
            "model": "bench", "prompt": [rng.randrange(VOCAB) for _ in range(32)], "max_tokens": ANSWER, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        before = None
        async for _ in _events(http, body):
            now = time.perf_counter()
            if before is not None:
                gaps.append(now - before)
            before = now


async def _events(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[str]:
    async with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async with contextlib.aclosing(response.aiter_lines()) as lines:
            async for line in lines:
                if line.startswith("data: {"):
                    yield line


async def _embed(http: httpx.AsyncClient, rng: random.Random, tokens: int, embedded: list[int]) -> None:
    while True:
        text = [rng.randrange(VOCAB) for _ in range(rng.randint(tokens // 2, tokens))]
        response = await http.post("/v1/embeddings", json={"model": "bench", "input": text})
        response.raise_for_status()
        embedded[0] += len(text)


if __name__ == "__main__":
    main()
