"""Clients that go away in the midst of a streamed answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NUM_TOKENS = 512
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


@dataclass
class Leaving:
    """Each asks for NUM_TOKENS tokens and closes its connection at a moment that the seed decides. read: tokens that
    came. silent: clients that left before any did."""

    port: int
    body: Callable[[random.Random], dict[str, Any]]
    at_once: int
    seed: int = 7
    read: int = 0
    silent: int = 0

    async def visits(self, count: int) -> None:
        moments, gate = random.Random(self.seed), asyncio.Semaphore(self.at_once)

        async def visit(number: int) -> None:
            async with gate:
                await self._visit(moments, by_time=number % 4 == 0)

        await asyncio.gather(*(visit(number) for number in range(count)))

    async def _visit(self, moments: random.Random, *, by_time: bool) -> None:
        """Leaves after some tokens, or after some seconds, perhaps before the first token."""
        body = {**self.body(moments), "max_tokens": NUM_TOKENS, "stream": True, "return_token_ids": True}
        text = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(HEAD % len(text) + text)
        enough, seconds = (NUM_TOKENS, moments.uniform(0, 0.3)) if by_time else (moments.randrange(1, NUM_TOKENS), None)
        came = 0
        try:
            async with asyncio.timeout(seconds):
                assert (await reader.readline()).split()[1] == b"200"
                while came < enough:
                    came += _tokens(await reader.readline())
        except TimeoutError:
            pass
        writer.close()
        await writer.wait_closed()
        self.read += came
        self.silent += came == 0


def _tokens(line: bytes) -> int:
    """In a line of a stream that goes on."""
    assert line
    assert line.strip() != b"data: [DONE]"
    assert not line.startswith(b'data: {"error"')
    return len(json.loads(line[6:])["choices"][0].get("token_ids", ())) if line.startswith(b"data: {") else 0
