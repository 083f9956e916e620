"""Connections to public addresses alone."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

import httpcore

from tessera.errors import RequestError

Resolve = Callable[[str, int], Awaitable[list[str]]]
# IPv6 addresses behind which there is an IPv4 address that a gateway may reach.
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


class PublicNetwork(httpcore.AsyncNetworkBackend):
    """Resolves a host, and connects to an address that was checked, not to whatever the host resolves to next."""

    def __init__(self, resolve: Resolve | None = None, network: httpcore.AsyncNetworkBackend | None = None) -> None:
        """resolve: the addresses of a host. network: what connects to an address."""
        self._resolve = resolve or _resolved
        self._network = network or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the name of httpcore's argument)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises RequestError if an address of the host is not public, and httpcore.ConnectError."""
        addresses = await self._resolve(host, port)
        if not addresses:
            raise httpcore.ConnectError("no address")
        if not all(map(is_public, addresses)):
            raise RequestError("The URL's host has an address that is not public; send the file as a data: URL.")
        for address in addresses[:-1]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError:
                continue
        return await self._network.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  (the name of httpcore's argument)
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("no network")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, and not to this machine or a network of its own."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return is_public(str(parsed.ipv4_mapped))
        if parsed.sixtofour or parsed.teredo or any(parsed in network for network in _TRANSLATED):
            return False
    return parsed.is_global and not parsed.is_multicast


async def _resolved(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
