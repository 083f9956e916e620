"""A server of Tessera, in its process and its children: answers about images over HTTP, and chats that run while images
arrive."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from benchmarks.http_load import HOST
from benchmarks.image_task import QUESTION, ImageTask, drive
from benchmarks.served import free_port
from benchmarks.soak import until_ready

import tessera

KV_CACHE = "2GiB"
MOST_SECONDS = 3600
ALONE_SECONDS = 30.0
LEAST_TOKENS = 100
"""Of each chat, before images arrive."""
LONGEST_CHAT = 1 << 14
"""Tokens; it is ended before."""
ROOM = 256
"""Tokens of its prompt."""


class Tessera:
    def __init__(self, task: ImageTask) -> None:
        port = free_port()
        command = [sys.executable, "-m", "tessera.cli", "serve", task.model, "--host", HOST, "--port", str(port)]
        command += ["--served-model-name", "bench", "--load-format", "dummy", "--dtype", task.dtype]
        command += ["--threads", str(task.threads), "--kv-cache-memory-bytes", KV_CACHE, "--disable-log-requests"]
        command += ["--max-model-len", str(LONGEST_CHAT + ROOM)]
        command += ["--max-num-seqs", str(task.chats + task.arrivals + 1)]
        command += ["--max-num-batched-tokens", str(task.step_tokens)]
        command += ["--stall-timeout", str(MOST_SECONDS)]  # the front end is stopped while the peer is timed
        self._server = subprocess.Popen(command)  # ends with this process's group
        self._url = f"http://{HOST}:{port}"
        self.version = tessera.__version__
        asyncio.run(self._until_ready())

    def answer(self, image: str) -> None:
        with httpx.Client(base_url=self._url, timeout=MOST_SECONDS) as http:
            http.post("/v1/chat/completions", json=_request(image)).raise_for_status()

    async def _until_ready(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=20) as http:
            await until_ready(http)

    async def beside(self, task: ImageTask) -> dict[str, Any]:
        """The seconds between tokens of chats alone and while images arrive, those to each image's answer, and how many
        images the tower encoded for two requests with the same one."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=MOST_SECONDS, limits=limits) as http:
            again = [await self._encodings(http, image) for image in task.arriving[:1] * 2]
            arrived: list[list[float]] = [[] for _ in range(task.chats)]
            tokens = asyncio.Queue[int]()
            chats = [asyncio.create_task(_chat(http, number, arrived, tokens)) for number in range(task.chats)]
            while min(map(len, arrived)) < 2:
                await tokens.get()
            began = time.perf_counter()
            while time.perf_counter() - began < ALONE_SECONDS or min(map(len, arrived)) < LEAST_TOKENS:
                await tokens.get()
            first = time.perf_counter()
            answers = await asyncio.gather(
                *(_later(http, task.interval * number, image) for number, image in enumerate(task.arriving[1:]))
            )
            last = time.perf_counter()
            for chat in chats:
                chat.cancel()
            await asyncio.gather(*chats, return_exceptions=True)
        return {
            "alone": [gap for times in arrived for gap in _gaps(times, began, first)],
            "beside": [gap for times in arrived for gap in _gaps(times, first, last)],
            "answers": answers,
            "encodings": again,
            "seconds": last - first,
        }

    async def _encodings(self, http: httpx.AsyncClient, image: str) -> int:
        """How many the tower does for a request."""
        before = await _encoded(http)
        (await http.post("/v1/chat/completions", json=_request(image))).raise_for_status()
        return await _encoded(http) - before


def _request(image: str) -> dict[str, Any]:
    data = base64.b64encode(Path(image).read_bytes()).decode()
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [shown, {"type": "text", "text": QUESTION}]
    return {"model": "bench", "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}


async def _encoded(http: httpx.AsyncClient) -> int:
    counts = {"queries": 0.0, "hits": 0.0}
    await asyncio.sleep(1.5)  # until the engine has reported
    for line in (await http.get("/metrics")).text.splitlines():
        for name in counts:
            if f":mm_cache_{name}" in line and not line.startswith("#"):
                counts[name] += float(line.rpartition(" ")[2])
    return int(counts["queries"] - counts["hits"])


async def _later(http: httpx.AsyncClient, seconds: float, image: str) -> float:
    await asyncio.sleep(seconds)
    began = time.perf_counter()
    (await http.post("/v1/chat/completions", json=_request(image))).raise_for_status()
    return time.perf_counter() - began


async def _chat(
    http: httpx.AsyncClient, number: int, arrived: Sequence[list[float]], tokens: asyncio.Queue[int]
) -> None:
    """Goes on until it is cancelled. arrived: when each token did, by chat."""
    body = {
        "model": "bench",
        "prompt": f"Tell the {number}th story of a river.",
        "max_tokens": LONGEST_CHAT,
        "ignore_eos": True,
        "stream": True,
        "seed": number,
    }
    async with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for _ in _events(response):
            arrived[number].append(time.perf_counter())
            tokens.put_nowait(number)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data:") and not line.endswith("[DONE]"):
            with contextlib.suppress(ValueError):
                yield json.loads(line.removeprefix("data:"))


def _gaps(times: list[float], begin: float, end: float) -> Iterator[float]:
    """Between tokens, of which the later one came in that time."""
    for earlier, later in pairwise(times):
        if begin <= later <= end:
            yield later - earlier


if __name__ == "__main__":
    drive(Tessera, lambda server, task: asyncio.run(server.beside(task)))
