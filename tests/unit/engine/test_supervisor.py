"""When another engine is started, and when no more is."""

from __future__ import annotations

import asyncio

import pytest

from tessera.config import Supervision
from tessera.engine import supervisor
from tessera.engine.pulse import Watchdog
from tessera.engine.supervisor import RestartBudget, Supervisor, SupervisorCallbacks
from tessera.errors import MemoryBudgetError


def test_the_third_death_within_five_minutes_is_one_too_many():
    now = [0.0]
    budget = RestartBudget(2, 300.0, lambda: now[0])
    assert budget.count_crash()
    now[0] = 200.0
    assert budget.count_crash()
    now[0] = 299.0
    assert not budget.count_crash()
    assert budget.num_crashes == 3


def test_deaths_that_are_long_ago_do_not_count():
    now = [0.0]
    budget = RestartBudget(2, 300.0, lambda: now[0])
    for _ in range(20):
        now[0] += 151.0
        assert budget.count_crash()
    assert budget.num_crashes == 2


def test_without_restarts_the_first_is_the_last():
    assert not RestartBudget(0, 300.0).count_crash()


class FakeConnection:
    """ready: what its start brings, or the error that ends it."""

    def __init__(self, number, ready):
        self.pid = number
        self.ready = ready
        self.is_hung = False
        self.watchdog = Watchdog(0.01)
        self.ended = asyncio.get_running_loop().create_future()
        self.said = []

    async def started(self):
        if isinstance(self.ready, Exception):
            raise self.ready
        return self.ready

    def check_hang(self):
        return "It hangs." if self.is_hung else None

    async def stacks(self):
        return "where it hangs"

    def ignore_messages(self):
        self.said.append("ignore messages")

    def close(self):
        self.said.append("close")

    async def shutdown(self):
        self.said.append("shutdown")


class World:
    """A supervisor over fake connections; heard: what its callbacks were told. explained: the causes of death
    that a request is to blame for."""

    def __init__(self, *readies, supervision=None):
        self.readies = list(readies)
        self.connections = []
        self.heard = []
        self.explained = set()
        charge = SupervisorCallbacks(
            self.lost,
            lambda info: self.heard.append(("found", info)),
            lambda cause: self.heard.append(("given up", cause)),
        )
        self.supervisor = Supervisor(self.begin, charge, supervision or Supervision(), 1)

    def lost(self, cause):
        self.heard.append(("lost", cause))
        return cause in self.explained

    def begin(self, number):
        ready = self.readies.pop(0)
        if isinstance(ready, OSError):
            raise ready
        self.connections.append(FakeConnection(number, ready))
        return self.connections[-1]

    def begins_for_ever(self):
        """The next engine never comes up."""

        def begin(number):
            connection = self.begin(number)
            connection.started = asyncio.Event().wait
            return connection

        self.supervisor._connect = begin

    async def dies(self, cause):
        self.connections[-1].ended.set_result(cause)
        await self.settles()

    async def settles(self):
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_death_is_followed_by_an_engine_of_the_next_epoch():
    world = World("one", "two")
    assert await world.supervisor.start() == "one"
    await world.dies("It died.")
    assert world.heard == [("lost", "It died."), ("found", "two")]
    assert [connection.pid for connection in world.connections] == [1, 2]
    assert world.connections[0].said == ["ignore messages", "close"]
    await world.supervisor.stop()
    assert world.connections[1].said == ["shutdown"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (MemoryBudgetError("The weights do not fit."), "The weights do not fit."),
        (OSError(12, "Cannot allocate memory"), "No process could be started (Cannot allocate memory)."),
    ],
)
async def test_a_start_that_fails_is_a_death_and_the_last_says_why(error, why, caplog):
    world = World("one", error, error)
    await world.supervisor.start()
    await world.dies("It died.")
    assert world.heard[-1] == ("given up", f"The engine died 3 times within 300 s. {why}")
    assert world.supervisor.ended.is_set()
    assert caplog.text.count(why) == 2


async def test_deaths_that_a_request_was_to_blame_for_do_not_count():
    world = World(*range(7))
    world.explained = {"Its request died too."}
    await world.supervisor.start()
    for _ in range(2):
        for cause in ("It died.", "It died.", "Its request died too."):
            await world.dies(cause)
            assert world.heard[-1][0] == "found"
    await world.supervisor.stop()


async def test_what_the_first_start_raises_is_raised_and_nothing_is_started_again():
    world = World(MemoryBudgetError("The weights do not fit."))
    with pytest.raises(MemoryBudgetError):
        await world.supervisor.start()
    assert world.connections[0].said == ["close"]
    assert world.heard == []


async def test_an_engine_that_hangs_leaves_its_stacks_in_the_log(caplog):
    world = World("one", "two")
    await world.supervisor.start()
    world.connections[0].is_hung = True
    await asyncio.sleep(0.05)
    await world.settles()
    assert ("found", "two") in world.heard
    assert "stacks of engine process 1\nwhere it hangs" in caplog.text
    await world.supervisor.stop()


async def test_a_start_that_hangs_is_a_death(monkeypatch):
    monkeypatch.setattr(supervisor, "START_SECONDS", 0.01)
    world = World("one", "two", supervision=Supervision(max_restarts=1))
    await world.supervisor.start()
    world.begins_for_ever()
    await world.dies("It died.")
    await asyncio.wait_for(world.supervisor.ended.wait(), 20)
    assert "did not start within 0 s" in world.heard[-1][1]
    assert world.connections[1].is_hung


async def test_stopping_ends_it_while_another_engine_starts():
    world = World("one", "two")
    await world.supervisor.start()
    world.begins_for_ever()
    await world.dies("It died.")
    await world.supervisor.stop()
    assert world.heard == [("lost", "It died.")]
    assert world.connections[1].said == ["shutdown"]


async def test_a_supervisor_that_fails_gives_up_rather_than_wait_for_ever(caplog):
    world = World("one", ZeroDivisionError("a bug"))
    await world.supervisor.start()
    await world.dies("It died.")
    assert world.heard[-1][0] == "given up"
    assert "ZeroDivisionError" in caplog.text
