"""A server over a scripted engine: in process for most tests, on a socket for those about connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tessera.server.app import create_app
from tessera.server.serve import ReadyApp, serve
from tessera.server.settings import ServerSettings
from tests.server.fake_engine import MODEL, FakeEngine


class Api:
    """An in-process client of one server. chat() and complete() fill in what a request must have."""

    def __init__(self, engine: FakeEngine, client: httpx.AsyncClient) -> None:
        self.engine = engine
        self.client = client

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.post("/v1/chat/completions", body)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"model": MODEL, "prompt": "Hi", **fields})

    async def post(self, path: str, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, headers={"Content-Type": "application/json"})


@asynccontextmanager
async def in_process(engine: FakeEngine, settings: ServerSettings | None = None) -> AsyncIterator[Api]:
    app = create_app(engine, settings or ServerSettings())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield Api(engine, client)


class Running:
    """A server on a socket of this machine. port: 0 on a Unix socket."""

    def __init__(self, engine: FakeEngine, port: int, task: asyncio.Task[int], *, tls: bool) -> None:
        self.engine = engine
        self.port = port
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        self.task = task

    def openai(self, **options: Any) -> openai.AsyncOpenAI:
        given = {"base_url": f"{self.url}/v1", "api_key": "any", "max_retries": 0, **options}
        return openai.AsyncOpenAI(**given)


async def started(engine: Any, settings: ServerSettings, loading: asyncio.Event | None = None) -> ReadyApp:
    if loading is not None:
        await loading.wait()
    return ReadyApp(engine, create_app(engine, settings))


@asynccontextmanager
async def on_socket(
    engine: FakeEngine,
    settings: ServerSettings | None = None,
    listener: socket.socket | None = None,
    loading: asyncio.Event | None = None,
) -> AsyncIterator[Running]:
    """listener: in place of one on a free port. loading: is set when the start is over, at the latest at the end."""
    settings = settings or ServerSettings(drain_seconds=1.0)
    if listener is None:
        listener = socket.create_server(("127.0.0.1", 0))
    port = 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]
    task = asyncio.create_task(serve(started(engine, settings, loading), listener, settings))
    try:
        yield Running(engine, port, task, tls=settings.tls is not None)
    finally:
        if loading is not None:
            loading.set()
        if not task.done():
            engine.die()
            await asyncio.wait((task,))
        listener.close()


@pytest.fixture
def fakes_in_the_engines_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interpreter finds the modules of the tests, of which one is the fake executor."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def api(engine: FakeEngine) -> AsyncIterator[Api]:
    async with in_process(engine) as api:
        yield api
