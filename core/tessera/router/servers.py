"""The servers behind a router: which of them are ready, and which gets a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from tessera.routing import PrefixRouting

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Between two health checks of a server."""
ANSWER_SECONDS = 2.0
"""That a health check may take."""


@dataclass(eq=False)
class RoutedServer:
    """One server. Its number is that of its bit in sets of servers, and may be used again when it is gone."""

    url: str
    number: int
    # It answered the last health check, and no request has failed since.
    is_ready: bool = False
    # It was taken off the list: it gets no more requests.
    is_draining: bool = False
    # Requests that it was sent.
    num_requests: int = 0
    # Those that it failed, and that another server ran, or none.
    num_failures: int = 0
    # In progress.
    load: int = 0


class ServerPool:
    """The servers on the list, and those that still answer what they had begun."""

    def __init__(self, client: httpx.AsyncClient, capacity: int) -> None:
        """capacity: blocks of prompts that a server has room for."""
        self.servers: list[RoutedServer] = []
        # Those of them that may get requests, as bits, kept so that no request looks at each server.
        self._open = 0
        self._numbered: dict[int, RoutedServer] = {}
        self._client = client
        self._routing = PrefixRouting(capacity)

    def update(self, urls: Sequence[str]) -> None:
        """The list has changed: adds what is new, and drains what is gone."""
        for server in self.servers:
            server.is_draining = server.url not in urls
            self._open_or_close(server)
        known = {server.url for server in self.servers}
        for url in dict.fromkeys(urls):
            if url not in known:
                number = next(number for number in range(len(self.servers) + 1) if number not in self._numbered)
                server = self._numbered[number] = RoutedServer(url, number)
                self.servers.append(server)
                self._routing.add(number)
        for server in list(self.servers):
            self._remove_drained(server)
        log.info("%d servers, of which %d end", len(self.servers), sum(one.is_draining for one in self.servers))

    @property
    def is_ready(self) -> bool:
        return any(server.is_ready and not server.is_draining for server in self.servers)

    def choose(self, blocks: Sequence[bytes], tried: Sequence[RoutedServer]) -> RoutedServer | None:
        """The server for a request. tried: those that failed it. None if no other is ready."""
        available = self._open
        for server in tried:
            available &= ~(1 << server.number)
        chosen = self._routing.choose(blocks, available)
        return None if chosen is None else self._numbered[chosen]

    @contextmanager
    def running(self, server: RoutedServer, blocks: Sequence[bytes]) -> Iterator[None]:
        """While the server runs a request."""
        self._routing.begin(server.number, blocks)
        server.num_requests += 1
        server.load += 1
        try:
            yield
        finally:
            server.load -= 1
            self._routing.finish(server.number)
            self._remove_drained(server)

    def failed(self, server: RoutedServer, *, is_down: bool) -> None:
        """A request failed. is_down: it gets none until it answers a health check."""
        server.num_failures += 1
        if is_down:
            self._set_ready(server, False)

    async def watch(self) -> None:
        """Checks the health of all servers until it is cancelled."""
        while True:
            await asyncio.gather(*(self._check(server) for server in self.servers))
            await asyncio.sleep(CHECK_SECONDS)

    async def _check(self, server: RoutedServer) -> None:
        try:
            answer = await self._client.get(f"{server.url}/readyz", timeout=ANSWER_SECONDS)
            ready = answer.status_code == httpx.codes.OK
        except httpx.HTTPError:
            ready = False
        self._set_ready(server, ready)

    def _set_ready(self, server: RoutedServer, ready: bool) -> None:
        if ready != server.is_ready:
            server.is_ready = ready
            self._open_or_close(server)
            log.log(
                logging.INFO if ready else logging.WARNING, "%s is %s", server.url, "ready" if ready else "not ready"
            )

    def _open_or_close(self, server: RoutedServer) -> None:
        if self._numbered.get(server.number) is not server:
            return  # it is gone, and its number may be another's
        bit = 1 << server.number
        self._open = self._open | bit if server.is_ready and not server.is_draining else self._open & ~bit

    def _remove_drained(self, server: RoutedServer) -> None:
        if server.is_draining and not server.load:
            self.servers.remove(server)
            del self._numbered[server.number]
            self._routing.remove(server.number)
