"""Engines of their own process over the fake executor, ended after each test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tessera.config import Supervision
from tessera.engine.async_engine import AsyncEngine
from tests.engine import fakes

Start = Callable[..., Awaitable[AsyncEngine]]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fakes_in_the_engines_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interpreter finds the modules of the tests, and tessera where it is not installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where this test's engines have their sockets; tmp_path, made before tempfile is led astray, is too long."""
    with tempfile.TemporaryDirectory(prefix="sockets-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    """start("slow", max_num_seqs=2): an engine whose fake executor behaves so."""
    async with AsyncExitStack() as stack:

        async def begin(
            behaviour: str = "", supervision: Supervision | None = None, **scheduler: object
        ) -> AsyncEngine:
            config = fakes.config(behaviour, **scheduler)
            engine = await AsyncEngine.start(config, text=None, executor=fakes.EXECUTOR, supervision=supervision)
            stack.push_async_callback(engine.shutdown)
            return engine

        yield begin


@pytest_asyncio.fixture
async def group() -> AsyncIterator[Start]:
    """group(2, "slow", max_num_seqs=2): an engine of two with data parallelism, whose fake executors behave so."""
    async with AsyncExitStack() as stack:

        async def begin(
            size: int,
            behaviour: str = "",
            *,
            sticky: bool = False,
            supervision: Supervision | None = None,
            **scheduler: object,
        ) -> AsyncEngine:
            config = fakes.config(behaviour, **scheduler)
            parallel = replace(config.parallel, data_parallel_size=size, sticky_cache_salt=sticky)
            config = replace(config, parallel=parallel)
            engine = await AsyncEngine.start(config, text=None, executor=fakes.EXECUTOR, supervision=supervision)
            stack.push_async_callback(engine.shutdown)
            return engine

        yield begin
