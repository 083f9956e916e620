"""A closed loop of clients on a server's /v1/completions: each client sends its next request when it has an answer.
Prompts are token ids; answers arrive as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"


class HttpError(Exception):
    """A server did not answer as it should; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """sent: when the request was sent. arrived: when each event with text arrived, on the same clock. tokens: as
    counted by the server."""

    sent: float
    arrived: list[float]
    text: str
    tokens: int


@dataclass(frozen=True)
class Load:
    """The answers of all clients, and the seconds from the first request to the last answer."""

    answers: list[Answer]
    seconds: float

    def figures(self) -> dict[str, float]:
        firsts = [answer.arrived[0] - answer.sent for answer in self.answers]
        gaps = [
            later - earlier
            for answer in self.answers
            for earlier, later in zip(answer.arrived, answer.arrived[1:], strict=False)
        ]
        return {
            "output": sum(answer.tokens for answer in self.answers) / self.seconds,
            "ttft_p50_ms": 1e3 * percentile(firsts, 50),
            "itl_p50_ms": 1e3 * percentile(gaps, 50),
            "itl_p95_ms": 1e3 * percentile(gaps, 95),
        }


def percentile(values: Sequence[float], share: int) -> float:
    """The smallest value that at least `share` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def body(prompt: Sequence[int], tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a greedy request for exactly `tokens` tokens."""
    fixed = {"model": "bench", "temperature": 0, "ignore_eos": True, "stream": True}
    usage = {"stream_options": {"include_usage": True}}
    return {**fixed, **usage, **fields, "prompt": list(prompt), "max_tokens": tokens}


async def closed_loop(port: int, bodies: Sequence[Mapping[str, Any]], clients: int) -> Load:
    """Returns answers in the order of the bodies. Raises HttpError."""
    waiting = deque(enumerate(bodies))
    answers: dict[int, Answer] = {}

    async def client() -> None:
        while waiting:
            index, request = waiting.popleft()
            answers[index] = await _complete(port, request)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Load([answers[index] for index in range(len(bodies))], time.perf_counter() - began)


async def is_ready(port: int) -> bool:
    """Whether GET /health returns status 200."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        writer.write(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        return (await reader.readline()).split()[1:2] == [b"200"]
    except OSError:
        return False
    finally:
        writer.close()


async def _complete(port: int, request: Mapping[str, Any]) -> Answer:
    content = json.dumps(request).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    sent = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
        arrived, texts, tokens = [], [], 0
        async for event in _events(reader):
            text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
            if text:
                arrived.append(time.perf_counter())
                texts.append(text)
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise HttpError(f"an answer broke off: {error}") from error
    finally:
        writer.close()
    if tokens != request["max_tokens"] or not arrived:
        raise HttpError(f"an answer has {tokens} tokens and {len(arrived)} events, not {request['max_tokens']} tokens")
    return Answer(sent, arrived, "".join(texts), tokens)


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    status = (await reader.readline()).split()
    chunked = False
    while line := (await reader.readline()).strip():
        chunked |= line.lower().replace(b" ", b"") == b"transfer-encoding:chunked"
    rest = b""
    async for piece in _chunks(reader) if chunked else _pieces(reader):
        *lines, rest = (rest + piece).split(b"\n")
        if status[1:2] != [b"200"]:
            raise HttpError(f"status {b' '.join(status[1:]).decode()}: {piece[:200].decode(errors='replace')}")
        for line in lines:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                yield json.loads(line[5:])


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readline()


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(65536):
        yield piece
