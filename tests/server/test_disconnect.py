"""until_disconnect: a client that goes away ends the work, and only the work."""

from __future__ import annotations

import asyncio

import pytest

from tessera.server.http import until_disconnect


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
