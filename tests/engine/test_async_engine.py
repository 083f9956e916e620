"""AsyncEngine over a process: streams, aborts, refusals, what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time

import numpy as np
import pytest
import uvloop
import zmq

from tessera.engine import spawned_engine
from tessera.engine.async_engine import AsyncEngine
from tessera.engine.messages import MAX_MESSAGE_BYTES, Codec, EngineStats, Report
from tessera.errors import EngineDeadError, OverloadedError, RequestError
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tests.engine import fakes


def params(**given):
    return SamplingParams(**{"max_tokens": 20, "output_kind": RequestOutputKind.DELTA, **given})


async def tokens_of(engine, prompt, **given):
    return [
        token
        async for output in engine.generate(prompt, params(**given))
        for completion in output.outputs
        for token in completion.token_ids
    ]


async def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.005)


def waiting_and_running(engine):
    stats = engine.metrics.stats
    return stats.num_waiting + stats.num_running


async def test_streams_run_beside_each_other(start):
    engine = await start()
    prompts = [[1, 2, number + 3] for number in range(40)]
    answers = await asyncio.gather(*(tokens_of(engine, prompt) for prompt in prompts))
    assert answers == [fakes.answer(prompt, 20) for prompt in prompts]


async def test_outputs_come_as_they_are_made(start):
    engine = await start("slow")
    outputs = [output async for output in engine.generate([1, 2, 3], params(max_tokens=5))]
    assert len(outputs) == 5
    assert [output.finished for output in outputs] == [False] * 4 + [True]
    assert outputs[-1].outputs[0].finish_reason == "length"


async def test_a_reader_that_sleeps_holds_nobody_up_and_misses_nothing(start):
    engine = await start()
    slow = engine.generate([9], params(max_tokens=500))
    first = await anext(slow)
    assert await asyncio.wait_for(tokens_of(engine, [5], max_tokens=500), 20) == fakes.answer([5], 500)
    await until(lambda: waiting_and_running(engine) == 0)
    rest = [output async for output in slow]
    assert len(rest) <= 2
    tokens = [token for output in [first, *rest] for token in output.outputs[0].token_ids]
    assert tokens == fakes.answer([9], 500)


async def test_closing_a_stream_ends_its_request_within_a_step(start):
    engine = await start("slow")
    stream = engine.generate([1], params(max_tokens=4000))
    await anext(stream)
    steps = engine.metrics.stats.counters.steps
    await stream.aclose()
    await until(lambda: waiting_and_running(engine) == 0)
    # The step that ran when the abort came, and one that was on its way to the reader.
    assert engine.metrics.stats.counters.steps - steps <= 2
    assert engine.metrics.request_success["abort"] == 1


async def test_cancelling_a_reader_aborts_its_request(start):
    engine = await start("slow")
    reader = asyncio.create_task(tokens_of(engine, [1], max_tokens=4000))
    await until(lambda: engine.metrics.stats.num_running == 1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until(lambda: waiting_and_running(engine) == 0)


async def test_abort_by_id_ends_the_stream(start):
    engine = await start("slow")
    stream = engine.generate([1], params(max_tokens=4000), "mine")
    await anext(stream)
    await engine.abort("mine")
    await engine.abort("nobody's")
    rest = [output async for output in stream]
    assert rest[-1].finished
    assert rest[-1].outputs[0].finish_reason == "abort"
    await until(lambda: waiting_and_running(engine) == 0)


async def test_a_thousand_abandoned_streams_leave_nothing(start):
    engine = await start(max_waiting=2000)

    async def abandon(number):
        stream = engine.generate([number % 60 + 1], params(max_tokens=2000))
        if number % 2:
            await anext(stream)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0)
        await stream.aclose()

    # A first answer: the sockets connect when they like, and all of them have by then.
    assert await tokens_of(engine, [4]) == fakes.answer([4], 20)
    files, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    await asyncio.gather(*(abandon(number) for number in range(1000)))
    await until(lambda: waiting_and_running(engine) == 0)
    assert engine.metrics.stats.kv_usage == 0.0
    assert len(os.listdir("/proc/self/fd")) == files
    assert len(asyncio.all_tasks()) == tasks
    assert await tokens_of(engine, [4]) == fakes.answer([4], 20)


async def test_what_the_engine_does_not_take_is_refused(start):
    engine = await start("slow", max_num_seqs=1, max_waiting=1)
    streams = [engine.generate([1], params(max_tokens=1000)) for _ in range(2)]
    await anext(streams[0])
    waiting = asyncio.create_task(anext(streams[1]))
    await until(lambda: engine.metrics.stats.num_waiting == 1)
    with pytest.raises(OverloadedError):
        await tokens_of(engine, [1])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for stream in streams:
        await stream.aclose()


async def test_the_engines_own_refusal_reaches_the_reader_and_ends_the_siblings(start):
    engine = await start("slow", max_num_seqs=4, max_waiting=1)
    with pytest.raises(OverloadedError, match="already waiting"):
        await tokens_of(engine, [1], n=4, max_tokens=4000)
    await until(lambda: waiting_and_running(engine) == 0)
    assert await tokens_of(engine, [1]) == fakes.answer([1], 20)


async def test_a_wrong_request_is_refused_before_the_first_output(start):
    engine = await start()
    with pytest.raises(RequestError, match="maximum context length is 4096 tokens"):
        await anext(engine.generate([1], params(max_tokens=5000)))
    with pytest.raises(RequestError, match="out of the vocabulary"):
        await anext(engine.generate([fakes.VOCAB] * 4000, params()))


async def test_log_probabilities_cross_the_process(start):
    engine = await start()
    (output,) = [o async for o in engine.generate([1], params(max_tokens=1, logprobs=2))]
    token = fakes.answer([1], 1)[0]
    assert {key: one.logprob for key, one in output.outputs[0].logprobs[0].items()} == {token: -1, 1: -2, 2: -3}


async def test_info_says_what_it_runs_on(start):
    engine = await start("defaults")
    info = engine.info
    assert (info.platform, info.dtype, info.weight_bytes, info.max_model_len) == ("fake", "float32", 1000, 4096)
    assert info.pid != os.getpid()
    assert list(info.phases) == ["executor", "load", "allocate", "warm_up"]
    assert info.notes == ["scheduler.max_num_seqs = 3: three is enough"]
    assert info.max_num_seqs == 3
    assert info.num_cache_tokens > info.max_model_len
    await asyncio.gather(*(tokens_of(engine, [1]) for _ in range(9)))


async def test_an_idle_engine_has_a_heartbeat(start):
    engine = await start()
    await asyncio.sleep(2.5)
    await until(lambda: engine.health.seconds_since_heartbeat < 0.5)
    assert engine.health.alive
    assert not engine.health.stalled


async def test_shutdown_ends_streams_and_leaves_nothing(start, sockets, caplog):
    caplog.set_level(logging.INFO)
    engine = await start("slow")
    assert f"engine process pid {engine.info.pid}" in caplog.text
    (directory,) = sockets.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    reader = asyncio.create_task(tokens_of(engine, [1], max_tokens=4000))
    await until(lambda: engine.metrics.stats.num_running == 1)
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await reader
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(engine.info.pid, 0)
    assert not engine.health.alive
    with pytest.raises(EngineDeadError):
        await tokens_of(engine, [1])
    await engine.shutdown()
    assert "killed" not in caplog.text


async def test_the_engine_is_closed_in_order(start, tmp_path):
    engine = await start(f"leave-a-mark {tmp_path / 'closed'}")
    await engine.shutdown()
    assert (tmp_path / "closed").exists()


async def test_two_engines_live_beside_each_other(start):
    one, other = await asyncio.gather(start(), start())
    answers = await asyncio.gather(tokens_of(one, [1]), tokens_of(other, [2]))
    assert answers == [fakes.answer([1], 20), fakes.answer([2], 20)]


async def test_an_engine_that_is_forgotten_takes_no_file_with_it():
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        engine = await AsyncEngine.start(fakes.config(), text=None, executor=fakes.EXECUTOR)
        await engine.shutdown()
        del engine
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files


async def test_junk_among_the_answers_is_dropped(start, sockets, caplog):
    engine = await start("slow")
    (address,) = sockets.glob("*/answers")
    whole = Codec(1).pack_answer(Report(EngineStats()))
    random = np.random.default_rng(0)
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(f"ipc://{address}")
        reader = asyncio.create_task(tokens_of(engine, [1]))
        for number in range(200):
            socket.send(random.bytes(number))
            socket.send(whole[: number % len(whole)])
        assert await reader == fakes.answer([1], 20)
        await until(lambda: "dropped a malformed message" in caplog.text)
    assert engine.health.alive


def test_it_runs_on_uvloop_as_well():
    async def use():
        engine = await AsyncEngine.start(fakes.config(), text=None, executor=fakes.EXECUTOR)
        try:
            return await asyncio.gather(*(tokens_of(engine, [number]) for number in range(1, 30)))
        finally:
            await engine.shutdown()

    assert uvloop.run(use()) == [fakes.answer([number], 20) for number in range(1, 30)]


async def test_requests_too_large_for_one_message_are_sent_as_several(start, monkeypatch):
    engine = await start(max_num_seqs=8)
    sent = []
    socket = engine._handle._supervisor.connection._spawned._requests
    monkeypatch.setattr(spawned_engine, "MAX_MESSAGE_BYTES", 2150)
    send = type(socket).send

    def noted(own, data, *options):
        sent.append(len(data))
        return send(own, data, *options)

    monkeypatch.setattr(type(socket), "send", noted)
    assert len(await tokens_of(engine, [1] * 500, n=4, max_tokens=3)) == 12
    assert len(sent) == 4
    assert max(sent) <= 2150


async def test_the_sockets_take_no_message_of_any_size():
    spawned = spawned_engine.SpawnedEngine(fakes.config(), fakes.EXECUTOR, 0)
    try:
        assert spawned._answers.maxmsgsize == MAX_MESSAGE_BYTES
    finally:
        spawned.close()
