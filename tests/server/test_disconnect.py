"""until_disconnect: a client that goes away ends the work, and only the work."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tessera.server.app import create_app
from tessera.server.http import ClientGone, unless_gone, until_disconnect
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


async def test_a_client_that_reads_nothing_is_cut_off():
    """It keeps its connection, and never reads."""
    engine = FakeEngine(script=Script(pieces=["x" * 100_000] * 400))
    settings = ServerSettings(drain_seconds=1.0, limits=Limits(write_seconds=0.2))
    async with on_socket(engine, settings) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        body = b'{"messages":[{"role":"user","content":"a"}],"stream":true}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(60):
            while not engine.aborted:  # noqa: ASYNC110 - another task's doing
                await asyncio.sleep(0.01)
        writer.transport.abort()
        assert engine.steps < 400
        del reader


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
