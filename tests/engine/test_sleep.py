"""An engine that sleeps has no process, refuses requests, and answers again once it is woken up."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tessera.config import Supervision
from tessera.engine.messages import EngineStats
from tessera.errors import EngineAsleepError, EngineDeadError, ModelError
from tests.engine import fakes
from tests.engine.test_async_engine import params, tokens_of, until
from tests.engine.test_engine_death import left_of, read_out
from tests.engine.test_engine_group import run_on


async def test_asleep_it_has_no_process_and_awake_another_one(start):
    engine = await start()
    assert await tokens_of(engine, [3]) == fakes.answer([3], 20)
    pid, steps = engine.info.pid, engine.metrics.stats.counters.steps
    for _ in range(2):
        await engine.sleep()
        assert not left_of(pid)
        assert (engine.health.asleep, engine.health.alive, engine.health.restarting) == (True, False, False)
        assert engine.metrics.stats == EngineStats()
        with pytest.raises(EngineAsleepError, match=r"until wake_up\(\)"):
            await tokens_of(engine, [3])
        with pytest.raises(EngineAsleepError):
            await engine.check_health()
    for _ in range(2):
        await engine.wake_up()
        assert (engine.health.asleep, engine.health.alive) == (False, True)
    assert engine.info.pid != pid
    assert await tokens_of(engine, [4]) == fakes.answer([4], 20)
    assert {metric.name: metric.value for metric in engine.metrics.read()}["generation_tokens"] == 40
    assert steps > 0
    assert engine.metrics.engine_restarts == 0


async def test_what_has_begun_ends_first_and_the_rest_is_refused(start):
    engine = await start("slow", max_num_seqs=2)
    begun = [asyncio.create_task(tokens_of(engine, [number], max_tokens=30)) for number in (1, 2, 3)]
    await until(lambda: engine.metrics.stats.num_waiting == 1)
    falling = asyncio.create_task(engine.sleep())
    await until(lambda: engine.health.asleep)
    assert engine.health.alive
    with pytest.raises(EngineAsleepError):
        await tokens_of(engine, [4])
    assert await asyncio.gather(*begun) == [fakes.answer([number], 30) for number in (1, 2, 3)]
    await falling
    assert not engine.health.alive


async def test_abort_ends_at_once_what_has_begun(start):
    engine = await start("slow")
    stream = engine.generate([1], params(max_tokens=4000))
    await anext(stream)
    rest = asyncio.create_task(read_out(stream))
    await engine.sleep(abort=True)
    with pytest.raises(EngineAsleepError):
        await rest
    assert not engine.health.alive
    assert engine.num_unfinished == 0


async def test_who_gives_up_falling_asleep_leaves_it_awake(start):
    engine = await start("slow")
    stream = engine.generate([1], params(max_tokens=4000))
    await anext(stream)
    falling = asyncio.create_task(engine.sleep())
    await until(lambda: engine.health.asleep)
    falling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await falling
    assert await tokens_of(engine, [4], max_tokens=3) == fakes.answer([4], 3)
    await stream.aclose()


async def test_an_engine_that_cannot_wake_up_sleeps_on(start, tmp_path):
    mark = tmp_path / "mark"
    engine = await start(f"fail-load later={mark}")
    await engine.sleep()
    with pytest.raises(ModelError, match="There is no such model"):
        await engine.wake_up()
    assert engine.health.asleep
    with pytest.raises(EngineAsleepError):
        await tokens_of(engine, [4])
    mark.unlink()
    await engine.wake_up()
    assert await tokens_of(engine, [4]) == fakes.answer([4], 20)


async def test_an_engine_that_woke_up_is_still_watched(start):
    engine = await start()
    await engine.sleep()
    await engine.wake_up()
    pid = engine.info.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: engine.metrics.engine_restarts == 1)
    assert engine.info.pid != pid
    assert await tokens_of(engine, [4]) == fakes.answer([4], 20)


async def test_neither_a_dead_engine_nor_one_that_is_shut_down_changes(start):
    engine = await start(supervision=Supervision(max_restarts=0))
    os.kill(engine.info.pid, signal.SIGKILL)
    await engine.wait_dead()
    with pytest.raises(EngineDeadError, match="signal 9"):
        await engine.sleep()
    other = await start()
    await other.sleep()
    await other.shutdown()
    with pytest.raises(EngineDeadError):
        await other.wake_up()


async def test_a_group_sleeps_and_wakes_up_as_one(group):
    engine = await group(2, supervision=Supervision(max_restarts=0))
    pids = [rank.info.pid for rank in engine.ranks]
    await engine.sleep()
    assert not any(left_of(pid) for pid in pids)
    assert engine.health.asleep
    with pytest.raises(EngineAsleepError):
        await tokens_of(engine, [4])
    await engine.wake_up()
    assert [await run_on(engine, [4], data_parallel_rank=rank) for rank in (0, 1)] == [0, 1]
    os.kill(engine.ranks[0].info.pid, signal.SIGKILL)
    await until(lambda: engine.ranks[0].has_ended)
    await engine.sleep()
    assert engine.health.asleep, "the one that is left"
