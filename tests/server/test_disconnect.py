"""until_disconnect: a client that goes away ends the work, and only the work."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from contextlib import asynccontextmanager

import pytest

from tessera.server.app import create_app
from tessera.server.http import ClientGone, unless_gone, until_disconnect
from tessera.server.reader_watch import ReaderWatch
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import on_socket
from tests.server.fake_engine import FakeEngine, Script


class Client:
    """Its connection, as a route sees it once the body has been read."""

    def __init__(self):
        self.gone = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def forever(ended):
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(True)


async def test_a_client_that_goes_away_ends_the_work_and_no_more():
    client, ended = Client(), []
    asyncio.get_running_loop().call_later(0.01, client.gone.set)
    await until_disconnect(client.receive, forever(ended))
    assert ended
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()
    await asyncio.sleep(0)  # is not cancelled


async def test_work_that_ends_first_leaves_nothing_behind():
    before = asyncio.all_tasks()
    await until_disconnect(Client().receive, asyncio.sleep(0))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_an_error_of_the_work_is_raised():
    async def fails():
        raise LookupError

    with pytest.raises(LookupError):
        await until_disconnect(Client().receive, fails())


@pytest.mark.parametrize("also_gone", [False, True])
async def test_a_cancellation_from_outside_stays_one(also_gone):
    client, ended = Client(), []
    task = asyncio.create_task(until_disconnect(client.receive, forever(ended)))
    await asyncio.sleep(0.01)
    if also_gone:
        client.gone.set()
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


@asynccontextmanager
async def reader_of_much(write_seconds):
    """A client's socket, with little room, and the engine whose long answer it gets."""
    engine = FakeEngine(script=Script(pieces=["x" * 100_000] * 400))
    settings = ServerSettings(drain_seconds=1.0, limits=Limits(write_seconds=write_seconds))
    body = b'{"messages":[{"role":"user","content":"a"}],"stream":true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    async with on_socket(engine, settings) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", server.port))
            await loop.sock_sendall(client, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            yield client, engine


async def until_cut_off(engine):
    async with asyncio.timeout(60):
        while not engine.aborted:  # noqa: ASYNC110 - another task's doing
            await asyncio.sleep(0.01)
    assert engine.steps < 400


async def test_a_client_that_reads_nothing_is_cut_off():
    """It keeps its connection, and never reads."""
    async with reader_of_much(write_seconds=0.2) as (_, engine):
        await until_cut_off(engine)


async def test_a_client_that_reads_slowly_but_steadily_is_not_cut_off_until_it_stops():
    """For seconds, what it takes does not yet make the kernel take more from the server."""
    async with reader_of_much(write_seconds=1.0) as (client, engine):
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        while time.monotonic() - began < 3:
            assert await loop.sock_recv(client, 2**14)
            await asyncio.sleep(0.05)
        assert not engine.aborted
        await until_cut_off(engine)


class Buffered:
    """A transport whose client has taken what `sizes` tells at each look. closed: when it was aborted."""

    def __init__(self, clock, sizes):
        self.clock, self.sizes, self.closed = clock, sizes, None

    def get_extra_info(self, _name):
        raise OSError  # no kernel tells anything

    def get_write_buffer_size(self):
        return self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]

    def abort(self):
        self.closed = self.clock.now


class Clock:
    """An event loop's clock and timers."""

    def __init__(self):
        self.now, self.due = 0.0, []

    def time(self):
        return self.now

    def call_later(self, seconds, call):
        self.due.append((self.now + seconds, call))

    def run(self):
        while self.due:
            self.now, call = self.due.pop()
            call()


@pytest.mark.parametrize(
    ("sizes", "end"),
    [([9], 8), ([9, 8], 9), ([9, 9, 9, 9, 9, 9, 9, 9, 8], 16), ([9, 8, 7, 6, 5, 4, 3, 2, 1], 16)],
)
def test_the_time_of_a_client_runs_from_when_it_last_took_something(sizes, end):
    clock = Clock()
    transport = Buffered(clock, sizes)
    ReaderWatch(transport, 8.0, clock).start()
    clock.run()
    assert transport.closed == end


async def test_the_result_of_work_is_returned_unless_the_client_has_gone():
    async def works():
        return 3

    client, ended = Client(), []
    assert await unless_gone(client.receive, works()) == 3
    client.gone.set()
    with pytest.raises(ClientGone):
        await unless_gone(client.receive, forever(ended))
    assert ended


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", b'{"prompt":"a"}'), ("/v1/messages/count_tokens", b'{"messages":[{"role":"user","content":"a"}]}')],
)
async def test_a_text_is_no_longer_tokenized_for_a_client_that_has_gone(path, body):
    engine, ended, client = FakeEngine(), [], Client()

    async def tokenizes(*_args):
        client.gone.set()
        await forever(ended)

    engine.text.list_tokens = engine.text.chat = tokenizes
    requests = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return requests.pop() if requests else await client.receive()

    async def send(_message):
        raise AssertionError("there is nobody to answer")

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    with contextlib.suppress(ClientGone):
        await create_app(engine, ServerSettings())(scope, receive, send)
    assert ended
