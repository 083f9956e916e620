"""Behind the proxies of deploy/, streams pass event by event and stay open, clients that go are noticed, and what is
too large is refused in words."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.served import Served
from tests.operate.proxies import BODY_MIB, EXAMPLES, proxy
from tools.rolling_restart.load import Load

EVENTS = 8
TIMEOUT_SECONDS = 30
SILENT_SECONDS = 2
FLAGS = (
    "--disable-log-requests", "--kv-cache-memory-bytes", "64MiB", "--max-file-bytes", "1MiB",
    "--sse-keep-alive-interval", "1",
)  # fmt: skip
"""A file may be smaller than what nginx lets pass."""
STREAM = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with Served([*FLAGS, "--batch-store", str(folder / "batches")], folder / "log") as server:
        yield server


@pytest.fixture(params=EXAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def metric(served: Served, name: str) -> float:
    text = httpx.get(f"{served.url}/metrics", timeout=30).text
    return sum(float(value) for value in re.findall(rf"^tessera:{name}.* (\S+)$", text, re.MULTILINE))


@asynccontextmanager
async def lock_step(turn: asyncio.Semaphore) -> AsyncIterator[int]:
    """The port of a server that sends an event of a stream each time that it is its turn, and nothing else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /stream"):
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
                b"Connection: close\r\n\r\n"
            )
            for number in range(EVENTS):
                await turn.acquire()
                event = f"data: {number}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_an_event_has_passed_before_there_is_another(name: str, tmp_path: Path) -> None:
    turn = asyncio.Semaphore(0)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        lock_step(turn) as port,
        proxy(name, port, tmp_path) as client,
        client.stream("GET", "/stream") as answer,
    ):
        lines = (line async for line in answer.aiter_lines() if line)
        for number in range(EVENTS):
            turn.release()
            assert await anext(lines) == f"data: {number}"


async def test_a_load_is_answered(name: str, served: Served, tmp_path: Path) -> None:
    async with proxy(name, served.port, tmp_path) as client:
        load = Load(str(client.base_url), trust=client.trust)
        running = asyncio.create_task(load.run(4))
        await asyncio.sleep(2)
        load.stop()
        await running
        assert set(load.outcomes) == {"answered"}


async def test_a_client_that_goes_is_noticed_by_the_engine(name: str, served: Served, tmp_path: Path) -> None:
    aborted = 'request_success_total{.*finished_reason="abort"'
    before = metric(served, aborted)
    async with proxy(name, served.port, tmp_path) as client:
        async with client.stream("POST", "/v1/completions", json=STREAM) as answer:
            assert (await anext(answer.aiter_lines())).startswith("data: ")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while metric(served, aborted) == before:  # noqa: ASYNC110  # another process counts
                await asyncio.sleep(0.05)


async def test_a_stream_outlives_the_silence_that_the_proxy_allows(name: str, served: Served, tmp_path: Path) -> None:
    """The engine stands still for longer than that; what keeps the stream open are the server's comments."""
    async with proxy(name, served.port, tmp_path, silent_seconds=SILENT_SECONDS) as client:
        engine = served.engine_pid()
        async with client.stream("POST", "/v1/completions", json=STREAM) as answer:
            lines = answer.aiter_lines()
            read = [await anext(lines)]
            os.kill(engine, signal.SIGSTOP)
            await asyncio.sleep(2 * SILENT_SECONDS)
            os.kill(engine, signal.SIGCONT)
            read += [line async for line in lines]
    events = [line for line in read if line]
    assert events[-1] == "data: [DONE]"
    assert sum(line.startswith(":") for line in events) >= 2


async def test_the_largest_file_is_stored(name: str, served: Served, tmp_path: Path) -> None:
    files = {"file": ("large.txt", b"x" * 2**20, "text/plain")}
    async with proxy(name, served.port, tmp_path) as client:
        answer = await client.post("/v1/files", data={"purpose": "user_data"}, files=files)
    assert answer.status_code == 200
    assert answer.json()["bytes"] == 2**20


@pytest.mark.parametrize("mib", [BODY_MIB - 1, 4 * BODY_MIB])
async def test_a_file_that_is_too_large_is_refused(mib: int, name: str, served: Served, tmp_path: Path) -> None:
    """Before it is sent, by Tessera or by nginx."""
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        f"Content-Length: {mib * 2**20}\r\nExpect: 100-continue\r\n\r\n"
    )
    async with proxy(name, served.port, tmp_path) as client, asyncio.timeout(TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection("localhost", client.port, ssl=client.trust)
        writer.write(head.encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        if answer.startswith("HTTP/1.1 100"):  # the proxy's own; nothing of the file has reached Tessera
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = await reader.read(2**16)
        writer.close()
        assert answer.startswith("HTTP/1.1 413")
        assert (b"larger than the limit of" in body) != (name == "nginx" and mib > BODY_MIB)
        assert (await client.get("/readyz")).status_code == 200
