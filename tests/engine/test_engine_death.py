"""How an engine's process may end, and what everyone hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tessera.config import Supervision
from tessera.engine import engine_connection
from tessera.engine.async_engine import AsyncEngine
from tessera.engine.messages import EngineStats
from tessera.errors import (
    ConfigError,
    EngineDeadError,
    FatalRequestError,
    MemoryBudgetError,
    ModelError,
    TesseraError,
)
from tessera.sampling_params import RequestOutputKind
from tests.engine import fakes
from tests.engine.test_async_engine import params, tokens_of, until


def engines_of(parent):
    """Pids of the engine processes that a process started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"tessera.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]


NO_RESTART = Supervision(max_restarts=0)
WATCHFUL = Supervision(stall_seconds=2.0)


async def read_out(stream):
    return [output async for output in stream]


def left_of(pid):
    return Path(f"/proc/{pid}").exists()


async def test_kill_9_ends_what_was_given_and_replays_the_rest(start, caplog):
    """16 rows and 32 streams: the first 16 have had a token, the others wait."""
    engine = await start("slow", max_num_seqs=16)
    given = [engine.generate([number], params(max_tokens=400)) for number in range(1, 17)]
    await asyncio.gather(*(anext(stream) for stream in given))
    waiting = [asyncio.create_task(tokens_of(engine, [number], max_tokens=10)) for number in range(17, 33)]
    whole = asyncio.create_task(tokens_of(engine, [33], max_tokens=10, output_kind=RequestOutputKind.FINAL_ONLY, n=2))
    await until(lambda: engine.metrics.stats.num_waiting == 18)
    steps = engine.metrics.stats.counters.steps
    pid = engine.info.pid
    rest = [asyncio.create_task(read_out(stream)) for stream in given]
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    results = await asyncio.wait_for(asyncio.gather(*rest, return_exceptions=True), 20)
    assert all(isinstance(result, EngineDeadError) and "signal 9" in result.message for result in results)
    assert engine.health.restarting
    assert not engine.health.alive
    with pytest.raises(EngineDeadError):
        await tokens_of(engine, [1])
    assert time.monotonic() - killed < 20
    assert engine.metrics.stats == EngineStats()
    answers = await asyncio.gather(*waiting)
    assert answers == [fakes.answer([number], 10) for number in range(17, 33)]
    assert sorted(await whole) == sorted(fakes.answer([33], 10) * 2)
    assert engine.health.alive
    assert engine.info.pid != pid
    assert (engine.metrics.engine_restarts, engine.metrics.replayed_requests) == (1, 17)
    assert {metric.name: metric.value for metric in engine.metrics.read()}["generation_tokens"] > 16 * steps
    assert await tokens_of(engine, [1]) == fakes.answer([1], 20)
    assert "took over after" in caplog.text


async def test_what_an_engine_had_made_and_nobody_had_seen_is_made_again(start, tmp_path):
    """One answer of two has ended, the other grows, and the engine dies: its whole answer comes."""
    engine = await start(f"fail-at-10 once={tmp_path / 'mark'}")
    final = {"output_kind": RequestOutputKind.FINAL_ONLY, "n": 2, "logprobs": 0}
    (output,) = [o async for o in engine.generate([5], params(max_tokens=30, stop_token_ids=[fakes.EOS], **final))]
    assert [answer.token_ids for answer in output.outputs] == [fakes.answer([5], 30)] * 2
    assert [len(answer.logprobs) for answer in output.outputs] == [30, 30]
    assert engine.metrics.replayed_requests == 1


async def test_all_that_ran_and_waited_is_replayed_though_it_cannot_all_wait(start):
    engine = await start("slow", max_num_seqs=2, max_waiting=2)
    final = {"output_kind": RequestOutputKind.FINAL_ONLY, "max_tokens": 12}
    readers = [asyncio.create_task(tokens_of(engine, [number], **final)) for number in (1, 2)]
    await until(lambda: engine.metrics.stats.num_running == 2)
    readers += [asyncio.create_task(tokens_of(engine, [number], **final)) for number in (3, 4)]
    await until(lambda: engine.metrics.stats.num_waiting == 2)
    os.kill(engine.info.pid, signal.SIGKILL)
    assert await asyncio.gather(*readers) == [fakes.answer([number], 12) for number in (1, 2, 3, 4)]


async def test_who_leaves_while_no_engine_runs_is_not_replayed(start):
    engine = await start("slow", max_num_seqs=1)
    final = {"output_kind": RequestOutputKind.FINAL_ONLY}
    leaving = asyncio.create_task(tokens_of(engine, [1], max_tokens=4000, **final))
    staying = asyncio.create_task(tokens_of(engine, [2], max_tokens=5, **final))
    await until(lambda: engine.metrics.stats.num_running == 1)
    os.kill(engine.info.pid, signal.SIGKILL)
    await until(lambda: engine.health.restarting)
    leaving.cancel()
    assert await staying == fakes.answer([2], 5)
    assert engine.metrics.replayed_requests == 1


async def test_an_error_in_a_step_ends_the_engine_with_its_traceback(start, capfd):
    engine = await start("fail-at-7", NO_RESTART)
    with pytest.raises(EngineDeadError, match="exit code 1"):
        await tokens_of(engine, [1])
    written = capfd.readouterr().err
    assert "Traceback" in written
    assert "ZeroDivisionError: a bug in a step" in written


async def test_a_request_that_kills_each_engine_ends_and_those_beside_it_go_on(start):
    engine = await start("poison=7 brisk")
    final = {"output_kind": RequestOutputKind.FINAL_ONLY, "max_tokens": 200}
    innocent = [asyncio.create_task(tokens_of(engine, [number], **final)) for number in range(10, 20)]
    await until(lambda: engine.metrics.stats.num_running == 10)
    with pytest.raises(FatalRequestError, match="not run again.*exit code 1"):
        await tokens_of(engine, [7], **final)
    assert await asyncio.gather(*innocent) == [fakes.answer([number], 200) for number in range(10, 20)]
    assert engine.metrics.engine_restarts == 3


async def test_one_such_request_after_another_does_not_end_the_server(start):
    engine = await start("poison=7 poison=8")
    final = {"output_kind": RequestOutputKind.FINAL_ONLY}
    for number in (7, 8):
        with pytest.raises(FatalRequestError):
            await tokens_of(engine, [number], **final)
        await until(lambda: engine.health.alive)
    assert await tokens_of(engine, [1]) == fakes.answer([1], 20)


async def test_deaths_that_no_request_is_to_blame_for_end_with_the_third(start):
    engine = await start()
    for count in (1, 2):
        os.kill(engine.info.pid, signal.SIGKILL)
        await until(lambda count=count: engine.metrics.engine_restarts == count)
    os.kill(engine.info.pid, signal.SIGKILL)
    await asyncio.wait_for(engine.wait_dead(), 20)
    with pytest.raises(EngineDeadError, match="died 3 times within 300 s"):
        await tokens_of(engine, [1])
    assert not engine.health.alive
    assert not engine.health.restarting
    assert engine.metrics.engine_restarts == 2
    assert engines_of(os.getpid()) == []


async def test_a_start_that_fails_again_is_a_death_and_says_why(start, tmp_path, caplog):
    engine = await start(f"no-memory later={tmp_path / 'mark'}")
    waiting = asyncio.create_task(tokens_of(engine, [1], max_tokens=4000, output_kind=RequestOutputKind.FINAL_ONLY))
    await until(lambda: engine.metrics.stats.num_running == 1)
    os.kill(engine.info.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="died 3 times within 300 s. The weights do not fit."):
        await waiting
    assert caplog.text.count("The weights do not fit.") == 2
    assert "stacks of" not in caplog.text


@pytest.mark.parametrize(
    ("behaviour", "how", "where"),
    [
        ("stop-at-3", "gave no sign of life for 2 s", "in execute"),
        ("hang-at-3", "has hung in a step for", "in execute"),
    ],
)
async def test_an_engine_that_hangs_is_replaced_and_the_log_shows_where(
    start, tmp_path, caplog, sockets, behaviour, how, where
):
    engine = await start(f"slow {behaviour} once={tmp_path / 'mark'}", WATCHFUL)
    pid = engine.info.pid
    given = engine.generate([1], params(max_tokens=400))
    await anext(given)
    whole = asyncio.create_task(tokens_of(engine, [2], output_kind=RequestOutputKind.FINAL_ONLY))
    await until(lambda: engine.health.stalled)
    assert engine.health.alive
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match=how):
        await read_out(given)
    assert await whole == fakes.answer([2], 20)
    assert time.monotonic() - began < 60
    assert not left_of(pid)
    (record,) = [record for record in caplog.records if record.getMessage().startswith("stacks of")]
    stacks = record.getMessage()
    assert f"process {pid}" in stacks
    assert where in stacks
    assert stacks.count("hread 0x") >= 3  # main, pulse, parent's watch
    assert len(list(sockets.iterdir())) == 1


async def test_a_long_step_that_computes_is_left_alone(start, caplog):
    engine = await start("spin-at-3", WATCHFUL)
    assert await tokens_of(engine, [1]) == fakes.answer([1], 20)
    assert engine.metrics.engine_restarts == 0
    assert "ERROR" not in caplog.text


async def test_a_stopped_engine_is_ended_by_shutdown(start, monkeypatch):
    monkeypatch.setattr(engine_connection, "SHUTDOWN_SECONDS", 0.2)
    engine = await start("stop-at-3")
    reader = asyncio.create_task(tokens_of(engine, [1]))
    await until(lambda: "T" in Path(f"/proc/{engine.info.pid}/stat").read_text().split()[2])
    await engine.shutdown()
    with pytest.raises(EngineDeadError):
        await reader
    assert engines_of(os.getpid()) == []


async def test_shutdown_during_a_restart_leaves_nothing(start, tmp_path, sockets):
    engine = await start(f"hang-load later={tmp_path / 'mark'}")
    os.kill(engine.info.pid, signal.SIGKILL)
    await until(lambda: engine.health.restarting and engines_of(os.getpid()))
    began = time.monotonic()
    await engine.shutdown()
    assert time.monotonic() - began < 20
    assert engines_of(os.getpid()) == []
    assert list(sockets.iterdir()) == []


async def test_restarts_leave_no_descriptors_and_no_tasks(start):
    engine = await start(supervision=Supervision(max_restarts=9))
    await tokens_of(engine, [1])
    before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for count in (1, 2):
        os.kill(engine.info.pid, signal.SIGKILL)
        await until(lambda count=count: engine.metrics.engine_restarts == count)
        await tokens_of(engine, [1])
    assert (len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())) == before


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        ("fail-load", ModelError, "There is no such model; name another."),
        ("no-memory", MemoryBudgetError, "The weights do not fit."),
        ("problems", ConfigError, "The fake cannot dance; leave out dancing.\nNor can it sing."),
        ("crash-load", EngineDeadError, "The engine's process ended with exit code 1; the log above says why."),
        ("kill-load", EngineDeadError, "The engine's process was killed (signal 9)"),
    ],
)
async def test_what_ends_a_start_is_raised_as_it_was(behaviour, error, message, sockets):
    with pytest.raises(error) as caught:
        await AsyncEngine.start(fakes.config(behaviour), text=None, executor=fakes.EXECUTOR)
    assert caught.value.message.startswith(message)
    assert engines_of(os.getpid()) == []
    assert list(sockets.iterdir()) == []


async def test_names_that_do_not_exist_are_a_users_error():
    for executor in ("tests.engine.fakes:Nobody", "tests.no_such_module:Nobody"):
        with pytest.raises(TesseraError, match=r"Nobody|no_such_module"):
            await AsyncEngine.start(fakes.config(), text=None, executor=executor)
    with pytest.raises(ConfigError, match="nonsense"):
        await AsyncEngine.start(fakes.config(policy="nonsense"), text=None, executor=fakes.EXECUTOR)


async def test_a_cancelled_start_leaves_nothing(sockets):
    starting = asyncio.create_task(AsyncEngine.start(fakes.config("hang-load"), text=None, executor=fakes.EXECUTOR))
    await until(lambda: engines_of(os.getpid()))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert engines_of(os.getpid()) == []
    assert list(sockets.iterdir()) == []


async def test_progress_of_the_start_is_told():
    heard = []
    engine = await AsyncEngine.start(
        fakes.config(), text=None, executor=fakes.EXECUTOR, on_progress=lambda p: heard.append((p.phase, p.done))
    )
    await engine.shutdown()
    assert heard == [("load", 1), ("warm_up", 1)]


@pytest.mark.parametrize("state", ["idle", "slow", "hang-load", "hold-at-3", "killed"])
def test_an_engine_ends_when_its_parent_does(state, sockets):
    program = textwrap.dedent(
        f"""
        import asyncio
        from tessera.engine.async_engine import AsyncEngine
        from tessera.sampling_params import SamplingParams
        from tests.engine import fakes

        async def main():
            engine = await AsyncEngine.start(fakes.config({state!r}), text=None, executor=fakes.EXECUTOR)
            if {state in ("slow", "hold-at-3")}:
                stream = engine.generate([1], SamplingParams(max_tokens=4000))
                await anext(stream)
                await asyncio.sleep(0.5)
            print("ready", flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    if state == "hang-load":
        while not (engines_of(parent.pid) and list(sockets.glob("*/*"))):
            time.sleep(0.01)
        time.sleep(0.5)
    else:
        assert parent.stdout.readline() == b"ready\n"
    (pid,) = engines_of(parent.pid)
    parent.kill()
    if state == "killed":  # both, as by a system that runs out of memory
        os.kill(pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end, "the engine outlives its parent"
        time.sleep(0.01)
    while list(sockets.iterdir()):
        assert time.monotonic() < end, "its files outlive it"
        time.sleep(0.01)


async def test_ctrl_c_in_the_terminal_is_the_parents_business(start):
    engine = await start()
    os.kill(engine.info.pid, signal.SIGINT)
    assert os.getpgid(engine.info.pid) != os.getpgid(os.getpid())
    assert await tokens_of(engine, [1]) == fakes.answer([1], 20)


async def test_answers_of_another_epoch_are_dropped(start, monkeypatch):
    monkeypatch.setattr(engine_connection, "SHUTDOWN_SECONDS", 0.2)
    engine = await start()
    codec = engine._handle._supervisor.connection._spawned._codec
    assert codec.epoch == 1
    codec.epoch = 2
    stream = engine.generate([1], params())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.3)
