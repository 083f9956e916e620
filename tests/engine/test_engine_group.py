"""Engines that share nothing behind one front end: who gets a request, and what becomes of it when its engine dies."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal

import pytest

from tessera.config import Supervision
from tessera.config.engine import ParallelConfig
from tessera.engine.async_engine import AsyncEngine
from tessera.errors import EngineDeadError, FatalRequestError, ModelError, PlatformError, RequestError
from tessera.executor.base import worker_specs
from tessera.platform.platform import with_ranks
from tessera.sampling_params import RequestOutputKind
from tests.engine import fakes
from tests.engine.test_async_engine import params, tokens_of, until
from tests.engine.test_engine_death import left_of

SHARED = list(range(1, 64)) * 5  # 315 tokens, four whole blocks of 64 and a part


def prompts_of(engine: AsyncEngine) -> list[int]:
    """Prompt tokens that each engine has seen."""
    return [rank.front_end.metrics.stats.counters.prompt_tokens for rank in engine.ranks]


async def run_on(engine: AsyncEngine, prompt: list[int], **options) -> int:
    """The rank that ran a request."""
    before = [rank.front_end.metrics.request_success["length"] for rank in engine.ranks]
    stream = engine.generate(prompt, params(max_tokens=2), **options)
    outputs = [output async for output in stream]
    assert outputs[-1].finished
    after = [rank.front_end.metrics.request_success["length"] for rank in engine.ranks]
    (rank,) = [number for number, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]
    return rank


async def test_requests_go_where_their_prefix_is_and_others_are_spread(group):
    engine = await group(3)
    assert len({rank.info.pid for rank in engine.ranks}) == 3
    assert engine.info.max_num_seqs == 3 * 16
    first = await run_on(engine, [*SHARED, 1])
    assert {await run_on(engine, [*SHARED, number]) for number in range(2, 8)} == {first}
    assert {await run_on(engine, [number, *SHARED[:200]]) for number in range(10, 19)} == {0, 1, 2}
    answers = await asyncio.gather(*(tokens_of(engine, [number]) for number in range(1, 30)))
    assert answers == [fakes.answer([number], 20) for number in range(1, 30)]
    assert all(prompts_of(engine))


async def test_a_prefix_decides_only_within_the_bound_on_load(group):
    engine = await group(2, "slow", max_num_seqs=64)
    streams = [engine.generate([*SHARED, number], params(max_tokens=300)) for number in range(1, 31)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    loads = [rank.front_end.num_unfinished for rank in engine.ranks]
    assert sum(loads) == 30
    assert 0 < min(loads) < max(loads) <= 1.5 * 15 + 5, "most where the prefix is, but not all"
    for stream in streams:
        await stream.aclose()


async def test_the_rank_may_be_named_and_must_exist(group):
    engine = await group(2)
    for rank in (1, 0, 1):
        assert await run_on(engine, [*SHARED, 5], data_parallel_rank=rank) == rank
    with pytest.raises(RequestError, match=r"data_parallel_rank must be from 0 to 1, got 2\."):
        await run_on(engine, [1], data_parallel_rank=2)


async def test_one_engine_has_rank_0_alone(start):
    engine = await start()
    assert await tokens_of(engine, [4]) == fakes.answer([4], 20)
    with pytest.raises(RequestError, match=r"data_parallel_rank must be 0, got 1\."):
        await anext(engine.generate([1], params(), data_parallel_rank=1))


async def test_a_salt_sticks_where_that_is_asked_for(group):
    engine = await group(4, sticky=True)
    ranks = {salt: {await run_on(engine, [number] * 90, cache_salt=salt) for number in (3, 5, 7)} for salt in "abc"}
    assert all(len(each) == 1 for each in ranks.values())
    assert len(set.union(*ranks.values())) > 1


async def test_what_a_dead_engine_had_sent_nothing_of_runs_elsewhere_at_once(group):
    engine = await group(2, "slow", max_num_seqs=2)
    begun = [engine.generate([number], params(max_tokens=400), data_parallel_rank=0) for number in (1, 2)]
    await asyncio.gather(*(anext(stream) for stream in begun))
    waiting = [
        asyncio.create_task(_first(engine, [number], data_parallel_rank=0 if number < 20 else None))
        for number in range(10, 26)
    ]
    await until(lambda: engine.ranks[0].front_end.num_unfinished > 2)
    dead, other = engine.ranks
    os.kill(dead.info.pid, signal.SIGKILL)
    for stream in begun:
        with pytest.raises(EngineDeadError, match="signal 9"):
            async for _ in stream:
                pass
    await until(lambda: dead.health.restarting)
    assert engine.health.alive
    assert not engine.health.restarting
    assert await run_on(engine, [50]) == 1, "the one that runs"
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert [task.result() for task in waiting] == [fakes.answer([number], 6) for number in range(10, 26)]
    assert dead.front_end.num_unfinished == other.front_end.num_unfinished == 0
    await until(lambda: dead.is_running)
    assert engine.ranks[0].front_end.metrics.engine_restarts == 1


async def _first(engine, prompt, **options):
    whole = params(max_tokens=6, output_kind=RequestOutputKind.FINAL_ONLY)
    (output,) = [output async for output in engine.generate(prompt, whole, **options)]
    return output.outputs[0].token_ids


async def test_an_engine_that_ended_for_good_leaves_the_others_serving(group, caplog):
    engine = await group(2, supervision=Supervision(max_restarts=0))
    dead = asyncio.create_task(engine.wait_dead())
    os.kill(engine.ranks[1].info.pid, signal.SIGKILL)
    await until(lambda: engine.ranks[1].has_ended)
    await until(lambda: "engine 1 has ended for good; 1 others serve on" in caplog.text)
    assert await tokens_of(engine, [3]) == fakes.answer([3], 20)
    assert not dead.done()
    os.kill(engine.ranks[0].info.pid, signal.SIGKILL)
    await asyncio.wait_for(dead, 20)
    assert not engine.health.alive
    with pytest.raises(EngineDeadError):
        await tokens_of(engine, [1])


async def test_abort_and_shutdown_reach_all_engines(group):
    engine = await group(2, "slow")
    streams = [
        engine.generate([number], params(max_tokens=4000), f"name-{number}", data_parallel_rank=number % 2)
        for number in (1, 2)
    ]
    await asyncio.gather(*(anext(stream) for stream in streams))
    await engine.abort("name-1")
    last = [output async for output in streams[0]][-1]
    assert last.outputs[0].finish_reason == "abort"
    pids = [rank.info.pid for rank in engine.ranks]
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        async for _ in streams[1]:
            pass
    assert not any(map(left_of, pids))


async def test_an_error_of_one_engine_s_start_ends_all(group):
    with pytest.raises(ModelError, match="There is no such model"):
        await group(2, "fail-load")


async def test_a_request_that_kills_engines_moves_once_and_is_then_found_out(group):
    engine = await group(2, "poison=7", supervision=Supervision(max_restarts=2))
    with pytest.raises(FatalRequestError, match="Engines died each time they ran this request"):
        await asyncio.wait_for(tokens_of(engine, [7]), 60)
    assert await tokens_of(engine, [8]) == fakes.answer([8], 20)
    assert sum(rank.front_end.metrics.engine_restarts for rank in engine.ranks) <= 4


@pytest.mark.parametrize(("rank", "devices"), [(0, [(0,), (1,)]), (2, [(4,), (5,)])])
def test_the_devices_of_engines_follow_each_other(rank, devices):
    parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=3, data_parallel_rank=rank)
    assert [spec.devices for spec in worker_specs(fakes.FakePlatform(""), parallel)] == devices


def test_a_platform_whose_workers_find_their_devices_themselves_refuses_a_second_engine():
    class ByEnvironment(fakes.FakePlatform):
        def placement(self, parallel):
            return with_ranks(parallel)

    parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=2)
    platform = ByEnvironment("")
    assert len(worker_specs(platform, parallel)) == 2
    with pytest.raises(PlatformError, match="'fake' has several workers find their devices by themselves, which does"):
        worker_specs(platform, dataclasses.replace(parallel, data_parallel_rank=1))
