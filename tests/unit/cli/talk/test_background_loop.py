"""Work on a loop of another thread, and what Ctrl-C does to it."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import warnings
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tessera.cli.talk.background_loop import BackgroundLoop


@pytest.fixture
def loop():
    with BackgroundLoop() as loop:
        yield loop


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


async def double(value):
    await asyncio.sleep(0)
    return 2 * value


def test_results_and_errors_come_back(loop):
    async def fail():
        raise LookupError("gone")

    assert loop.run(partial(double, 4)) == 8
    with pytest.raises(LookupError, match="gone"):
        loop.run(fail)


def test_what_is_interrupted_has_ended_when_the_interrupt_is_raised(loop):
    events = []

    async def work():
        try:
            interrupt()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            events.append("ended")

    with pytest.raises(KeyboardInterrupt):
        loop.run(work)
    assert events == ["ended"]
    assert loop.run(partial(double, 1)) == 2


@pytest.mark.parametrize("ending", ["whole", "break", "interrupt", "error"])
def test_a_generator_is_closed_whatever_ends_it(loop, ending):
    closed = []

    async def values():
        try:
            yield 1
            if ending == "interrupt":
                interrupt()
                await asyncio.sleep(3600)
            if ending == "error":
                raise LookupError
            yield None
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    seen = []

    def consume():
        for value in loop.iterate(values()):
            seen.append(value)
            if ending == "break":
                break

    if ending in ("interrupt", "error"):
        with pytest.raises(KeyboardInterrupt if ending == "interrupt" else LookupError):
            consume()
    else:
        consume()
    assert seen == ([1, None] if ending == "whole" else [1])
    assert closed == [True]


def test_an_impatient_second_interrupt_does_no_harm(loop):
    events = []

    async def values():
        try:
            yield 1
            interrupt()
            await asyncio.sleep(3600)
        finally:
            interrupt()
            await asyncio.sleep(0.05)
            events.append("closed")

    with pytest.raises(KeyboardInterrupt):
        list(loop.iterate(values()))
    assert events == ["closed"]
    assert loop.run(partial(double, 1)) == 2


def test_an_interrupt_before_the_loop_has_the_work_leaves_nothing_that_nobody_awaits(loop, monkeypatch):
    async def values():
        yield 1

    def interrupted(self, work):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(BackgroundLoop, "run", interrupted)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            list(loop.iterate(values()))
        gc.collect()
    assert [str(one.message) for one in warned] == []


def test_a_context_is_entered_and_left_on_the_loop(loop):
    threads = []

    @asynccontextmanager
    async def context():
        threads.append(threading.current_thread().name)
        yield "value"
        threads.append(threading.current_thread().name)

    def fail_within():
        with loop.entered(context()) as value:
            raise LookupError(value)

    with pytest.raises(LookupError, match="^value$"):
        fail_within()
    assert threads == ["event-loop", "event-loop"]


def test_the_end_cancels_what_still_runs_and_leaves_no_thread():
    cancelled = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append(True)

    async def begin():
        tasks.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)

    tasks = []
    with BackgroundLoop() as loop:
        loop.run(begin)
    assert cancelled == [True]
    assert all(thread.name != "event-loop" for thread in threading.enumerate())
