"""Which servers a pool chooses among, while servers come and go, fall ill and recover."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack

import httpx
import pytest

from tessera.router import servers as servers_module
from tessera.router.servers import RoutedServer, ServerPool

URLS = [f"http://server-{number}" for number in range(70)]  # more than a machine word has bits


class Fleet:
    """What answers health checks: by URL, whether it is well."""

    def __init__(self) -> None:
        self.well: dict[str, bool] = {}
        self.held: asyncio.Event | None = None
        self.num_asked = 0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        well = self.well[f"{request.url.scheme}://{request.url.host}"]
        self.num_asked += 1
        if self.held is not None:
            await self.held.wait()
        return httpx.Response(200 if well else 503)


def choosable(pool: ServerPool) -> list[RoutedServer]:
    """All that it would try, one after the other."""
    tried: list[RoutedServer] = []
    while (chosen := pool.choose((), tried)) is not None:
        tried.append(chosen)
    return tried


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


async def until_checked(pool: ServerPool, well: dict[str, bool]) -> None:
    watching = asyncio.create_task(pool.watch())
    await until(lambda: all(server.is_ready == well[server.url] for server in pool.servers))
    watching.cancel()


@pytest.fixture(autouse=True)
def checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "CHECK_SECONDS", 60)


async def test_only_those_are_chosen_that_are_well_and_on_the_list() -> None:
    chance, fleet = random.Random(3), Fleet()
    async with httpx.AsyncClient(transport=httpx.MockTransport(fleet.answer)) as client:
        pool = ServerPool(client, 10)
        with ExitStack() as running:
            for _ in range(12):
                listed = chance.sample(URLS, chance.randint(1, len(URLS)))
                pool.update(listed)
                fleet.well = {url: chance.random() < 0.7 for url in URLS}
                await until_checked(pool, fleet.well)
                expected = {url for url in listed if fleet.well[url]}
                for server in chance.sample(pool.servers, 3):
                    pool.failed(server, is_down=True)
                    expected.discard(server.url)
                assert {server.url for server in choosable(pool)} == expected
                assert len({server.number for server in pool.servers}) == len(pool.servers)
                for _ in range(2):
                    if (server := pool.choose((b"block",), ())) is not None:
                        running.enter_context(pool.running(server, (b"block",)))
        pool.update([])
    assert not pool.servers


async def test_a_late_health_check_of_a_server_that_is_gone_says_nothing_of_the_one_that_got_its_number() -> None:
    fleet = Fleet()
    fleet.well, held = {URLS[0]: True, URLS[1]: True}, asyncio.Event()
    fleet.held = held
    async with httpx.AsyncClient(transport=httpx.MockTransport(fleet.answer)) as client:
        pool = ServerPool(client, 10)
        pool.update(URLS[:1])
        late = asyncio.create_task(pool.watch())
        await until(lambda: fleet.num_asked == 1)
        (gone,) = pool.servers
        pool.update([])
        pool.update(URLS[1:2])
        fleet.held = None
        await until_checked(pool, fleet.well)
        assert choosable(pool) == pool.servers
        held.set()
        await until(lambda: gone.is_ready)
        late.cancel()
        assert [server.number for server in pool.servers] == [gone.number]
        assert choosable(pool) == pool.servers
