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

from tessera.engine import async_engine
from tessera.engine.async_engine import AsyncEngine
from tessera.errors import ConfigError, EngineDeadError, MemoryBudgetError, ModelError, TesseraError
from tests.engine import fakes
from tests.engine.test_async_engine import params, tokens_of, until


def engines_of(parent):
    """Pids of the engine processes that a process started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"tessera.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_kill_9_reaches_every_stream_within_a_second(start):
    engine = await start("slow")
    readers = [asyncio.create_task(tokens_of(engine, [number], max_tokens=4000)) for number in range(1, 13)]
    dead = asyncio.create_task(engine.wait_dead())
    await until(lambda: engine.metrics.stats.num_running == 12)
    killed = time.monotonic()
    os.kill(engine.info.pid, signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 1)
    await asyncio.wait_for(dead, 1)
    assert time.monotonic() - killed < 1
    assert all(isinstance(result, EngineDeadError) and "signal 9" in result.message for result in results)
    assert not engine.health.alive
    assert "signal 9" in engine.health.error
    with pytest.raises(EngineDeadError):
        await tokens_of(engine, [1])
    with pytest.raises(EngineDeadError):
        await engine.control(None)


async def test_an_error_in_a_step_ends_the_engine_with_its_traceback(start, capfd):
    engine = await start("fail-at-7")
    with pytest.raises(EngineDeadError, match="exit code 1"):
        await tokens_of(engine, [1])
    written = capfd.readouterr().err
    assert "Traceback" in written
    assert "ZeroDivisionError: a bug in a step" in written


async def test_a_stopped_engine_is_stalled_but_alive(start, monkeypatch):
    monkeypatch.setattr(async_engine, "STALLED", 0.5)
    monkeypatch.setattr(async_engine, "SHUTDOWN", 0.2)
    engine = await start("stop-at-3")
    reader = asyncio.create_task(tokens_of(engine, [1]))
    await until(lambda: engine.health.stalled)
    assert engine.health.alive
    await engine.shutdown()
    with pytest.raises(EngineDeadError):
        await reader
    assert engines_of(os.getpid()) == []


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
        await AsyncEngine.start(fakes.config(behaviour), tokenizer=None, executor=fakes.EXECUTOR)
    assert caught.value.message.startswith(message)
    assert engines_of(os.getpid()) == []
    assert list(sockets.iterdir()) == []


async def test_names_that_do_not_exist_are_a_users_error():
    for executor in ("tests.engine.fakes:Nobody", "tests.no_such_module:Nobody"):
        with pytest.raises(TesseraError, match=r"Nobody|no_such_module"):
            await AsyncEngine.start(fakes.config(), tokenizer=None, executor=executor)
    with pytest.raises(ConfigError, match="nonsense"):
        await AsyncEngine.start(fakes.config(policy="nonsense"), tokenizer=None, executor=fakes.EXECUTOR)


async def test_a_cancelled_start_leaves_nothing(sockets):
    starting = asyncio.create_task(
        AsyncEngine.start(fakes.config("hang-load"), tokenizer=None, executor=fakes.EXECUTOR)
    )
    await until(lambda: engines_of(os.getpid()))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert engines_of(os.getpid()) == []
    assert list(sockets.iterdir()) == []


async def test_progress_of_the_start_is_told():
    heard = []
    engine = await AsyncEngine.start(
        fakes.config(), tokenizer=None, executor=fakes.EXECUTOR, on_progress=lambda p: heard.append((p.phase, p.done))
    )
    await engine.shutdown()
    assert heard == [("load", 1), ("warm_up", 1)]


@pytest.mark.parametrize("state", ["idle", "slow", "hang-load"])
def test_an_engine_ends_when_its_parent_does(state, sockets):
    program = textwrap.dedent(
        f"""
        import asyncio
        from tessera.engine.async_engine import AsyncEngine
        from tessera.request import SamplingParams
        from tests.engine import fakes

        async def main():
            engine = await AsyncEngine.start(fakes.config({state!r}), tokenizer=None, executor=fakes.EXECUTOR)
            if {state == "slow"}:
                stream = engine.generate([1], SamplingParams(max_tokens=4000))
                await anext(stream)
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
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end, "the engine outlives its parent"
        time.sleep(0.01)
    assert list(sockets.iterdir()) == []


async def test_ctrl_c_in_the_terminal_is_the_parents_business(start):
    engine = await start()
    os.kill(engine.info.pid, signal.SIGINT)
    assert os.getpgid(engine.info.pid) != os.getpgid(os.getpid())
    assert await tokens_of(engine, [1]) == fakes.answer([1], 20)


async def test_answers_of_another_epoch_are_dropped(start, monkeypatch):
    monkeypatch.setattr(async_engine, "SHUTDOWN", 0.2)
    engine = await start()
    assert engine._spawned._codec.epoch == 1
    engine._spawned._codec.epoch = 2
    stream = engine.generate([1], params())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.3)
