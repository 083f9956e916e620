"""Runs a router on a bound socket until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence

import httpx
import uvicorn

from tessera.errors import TesseraError
from tessera.router.prefill import Prefill
from tessera.router.prompts import BLOCK_BYTES, TOKEN_BYTES, PromptBlocks
from tessera.router.proxy import Proxy
from tessera.router.servers import ServerPool

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0


class _RouterHttpServer(uvicorn.Server):
    """uvicorn's, whose signals are handled here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def run(
    listener: socket.socket,
    read_urls: Callable[[], Sequence[str]],
    *,
    prefix_tokens: int,
    sticky: bool,
    drain: float,
    prefill_urls: Sequence[str] = (),
) -> int:
    """Returns the exit code. read_urls: the servers, read anew at each SIGHUP. prefix_tokens: of prompts, that each
    server is taken to have cached. drain: seconds that requests in progress have to end, after SIGTERM or Ctrl-C.
    prefill_urls: of servers that compute prompts for the others."""
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as client:
        capacity = prefix_tokens * TOKEN_BYTES // BLOCK_BYTES
        pool, prefill = ServerPool(client, capacity), None
        pool.update(read_urls())
        watching = [asyncio.create_task(pool.watch())]
        if prefill_urls:
            prefill = Prefill(ServerPool(client, capacity), client)
            prefill.pool.update(prefill_urls)
            watching.append(asyncio.create_task(prefill.pool.watch()))
        proxy = Proxy(pool, client, PromptBlocks(sticky=sticky), prefill)
        config = uvicorn.Config(
            proxy, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, date_header=False, timeout_graceful_shutdown=max(1, round(drain)),
        )  # fmt: skip
        server = _RouterHttpServer(config)

        def stop() -> None:
            server.force_exit = server.should_exit
            server.should_exit = True

        def reload() -> None:
            try:
                pool.update(read_urls())
            except TesseraError as error:
                log.error("the servers stay as they are: %s", error.message)

        loop = asyncio.get_running_loop()
        for number, handle in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, reload)):
            loop.add_signal_handler(number, handle)
        try:
            await server.serve(sockets=[listener])
        finally:
            for task in watching:
                task.cancel()
    return 0
