"""Connections that say nothing, say it slowly or come in floods: they end, and health checks are answered meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from tessera.server import connections, http1
from tessera.server.connections import FOR_HEALTH, OWN_DESCRIPTORS, most_connections
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script

HANGS = 20.0
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
STREAM = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


async def opened(server, *pieces):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for piece in pieces:
        writer.write(piece)
    await writer.drain()
    return reader, writer


async def answer_to(server, *pieces):
    """All that a connection gets until it is closed."""
    reader, writer = await opened(server, *pieces)
    try:
        return await asyncio.wait_for(reader.read(), HANGS)
    finally:
        writer.close()


async def get(server, path):
    async with httpx.AsyncClient(base_url=server.url, timeout=HANGS) as client:
        return await client.get(path)


def with_head_seconds(seconds):
    return ServerSettings(limits=Limits(header_seconds=seconds), drain_seconds=1)


async def test_silent_connections_make_room_for_those_that_ask():
    async with on_socket(FakeEngine(), ServerSettings(max_connections=4, drain_seconds=1)) as server:
        silent = [await opened(server) for _ in range(40)]
        for path in ("/livez", "/health", "/v1/models"):
            assert (await get(server, path)).status_code == 200
        for reader, _ in silent[:36]:  # the longest idle are closed first
            with pytest.raises((ConnectionError, EOFError)):
                await asyncio.wait_for(reader.readexactly(1), HANGS)
        for _, writer in silent:
            writer.close()


async def test_the_first_to_go_is_the_one_idle_for_longest():
    async with on_socket(FakeEngine(), ServerSettings(max_connections=2, drain_seconds=1)) as server:
        old, new = await opened(server, LIVEZ), await opened(server, LIVEZ)
        for reader, _ in (old, new):
            await asyncio.wait_for(reader.readuntil(b"}"), HANGS)
        old[1].write(LIVEZ)
        await asyncio.wait_for(old[0].readuntil(b"}"), HANGS)
        third = await opened(server, LIVEZ)
        await asyncio.wait_for(third[0].readuntil(b"}"), HANGS)
        with pytest.raises((ConnectionError, EOFError)):
            await asyncio.wait_for(new[0].readexactly(1), HANGS)
        old[1].write(LIVEZ)
        assert await asyncio.wait_for(old[0].readuntil(b"}"), HANGS)
        for _, writer in (old, new, third):
            writer.close()


@asynccontextmanager
async def full_server():
    """A server whose ordinary connections all have a request."""
    engine = FakeEngine(script=Script(hang_at=1))
    async with (
        on_socket(engine, ServerSettings(max_connections=3, drain_seconds=0)) as server,
        AsyncExitStack() as held,
    ):
        client = await held.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=HANGS))
        for _ in range(3):
            await held.enter_async_context(client.stream("POST", "/v1/chat/completions", json=STREAM))
        yield server


async def test_health_is_answered_while_every_connection_has_a_request():
    async with full_server() as server:
        for path in ("/livez", "/health", "/readyz"):
            response = await get(server, path)
            assert (response.status_code, response.headers["connection"]) == (200, "close")
        response = await get(server, "/v1/models")
        assert (response.status_code, response.headers["connection"]) == (503, "close")
        assert "Too many connections" in response.json()["error"]["message"]


async def test_idle_connections_for_health_checks_make_room_for_new_ones():
    async with full_server() as server:
        silent = [await opened(server) for _ in range(3 * FOR_HEALTH)]
        assert (await get(server, "/livez")).status_code == 200
        for reader, _ in silent[: 2 * FOR_HEALTH]:
            with pytest.raises((ConnectionError, EOFError)):
                await asyncio.wait_for(reader.readexactly(1), HANGS)
        for _, writer in silent:
            writer.close()


async def test_no_request_takes_a_connection_kept_for_health_checks():
    async with full_server() as server, httpx.AsyncClient(base_url=server.url, timeout=HANGS) as client:
        for _ in range(FOR_HEALTH + 1):
            _, silent = await opened(server)  # which makes room for the next one
            async with client.stream("POST", "/v1/chat/completions", json=STREAM) as response:
                assert response.status_code == 503
            silent.close()
        assert (await get(server, "/livez")).status_code == 200
        assert len(server.engine.calls) == 3


async def test_a_health_check_in_a_burst_of_connections_is_answered():
    async with full_server() as server:
        check = socket.create_connection(("127.0.0.1", server.port))
        check.sendall(LIVEZ)
        burst = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
        answer = await asyncio.to_thread(check.recv, 64)
        assert answer.startswith(b"HTTP/1.1 200 ")
        for connection in (check, *burst):
            connection.close()


async def test_a_head_that_never_comes_or_never_ends_is_given_up():
    async with on_socket(FakeEngine(), with_head_seconds(0.2)) as server:
        assert await answer_to(server) == b""
        assert (await answer_to(server, LIVEZ[:20])).startswith(b"HTTP/1.1 408 ")
        reader, writer = await opened(server, LIVEZ)
        await asyncio.wait_for(reader.readuntil(b"}"), HANGS)
        writer.write(LIVEZ[:20])
        assert (await asyncio.wait_for(reader.read(), HANGS)).startswith(b"HTTP/1.1 408 ")
        writer.close()


@pytest.mark.parametrize(
    ("begin", "trickle"),
    [
        (b"", b"\r\n"),
        (b"GET /livez HTTP/1.1\r\n", b"a: b\r\n"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", b"x"),
    ],
)
async def test_bytes_now_and_then_do_not_keep_a_connection(begin, trickle):
    """The last is a body that nobody reads, which goes on after the answer."""
    async with on_socket(FakeEngine(), with_head_seconds(0.3)) as server:
        reader, writer = await opened(server, begin)
        began = time.monotonic()
        while not reader.at_eof():
            assert time.monotonic() - began < HANGS
            writer.write(trickle)
            await asyncio.sleep(0.02)
            if reader._buffer:  # what is there, without waiting for more
                await reader.read(2**16)
        writer.close()


async def test_the_time_a_request_takes_is_not_the_time_of_its_head():
    engine = FakeEngine(script=Script(pieces=["x"] * 20, delay=0.03))
    async with on_socket(engine, with_head_seconds(0.1)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=HANGS) as client:
            response = await client.post("/v1/chat/completions", json=STREAM)
        assert response.text.endswith("data: [DONE]\n\n")


async def test_half_sent_bodies_do_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(http1, "_HALF_SENT_SECONDS", 0.1)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    async with on_socket(FakeEngine(), ServerSettings(drain_seconds=600)) as server:
        asking = asyncio.create_task(answer_to(server, head))
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(server.task, HANGS) == 0
        answer = await asking
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"shutting down" in answer


class Full(socket.socket):
    """A listening socket of a process that has no descriptor left for a while."""

    refused = 0

    def accept(self):
        if self.refused < 3:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_a_process_without_descriptors_goes_on_when_it_has_some(monkeypatch, caplog):
    monkeypatch.setattr(connections, "_RETRY_SECONDS", 0.01)
    listener = Full(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    async with on_socket(FakeEngine(), listener=listener) as server:
        assert (await get(server, "/livez")).status_code == 200
    assert listener.refused == 3
    assert all(record.exc_info is None for record in caplog.records)


def test_connections_leave_descriptors_for_everything_else(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert most_connections(8192) == 1024 - OWN_DESCRIPTORS - FOR_HEALTH
    assert most_connections(10) == 10
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert most_connections(8192) == 8192
