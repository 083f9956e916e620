"""The bytes behind the URL of an image, a video or a sound.

A server sees networks that its clients do not: its own machine, a cloud's metadata service, what is behind a firewall.
So a host is resolved here, all of its addresses must be public, and the connection goes to the address that was checked
(network.py). Each redirect is a new URL with the same rules.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tessera.errors import ConfigError, RequestError
from tessera.media.data_url import check_media_type, decode_data_url, too_large

if TYPE_CHECKING:
    import ssl

    import httpcore
    import httpx

    from tessera.media.kinds import MediaKind
    from tessera.media.network import PublicNetwork
    from tessera.media.rules import MediaRules

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SHOWN_CHARS = 100


class MediaFetcher:
    """Reads files for a server."""

    def __init__(self, rules: MediaRules, network: PublicNetwork | None = None) -> None:
        """network: in place of this machine's. Raises ConfigError."""
        self._rules = rules
        self._network = network
        self._root: Path | None = None
        if rules.local_path:
            self._root = Path(rules.local_path).resolve()
            if not self._root.is_dir():
                raise ConfigError(f"--allowed-local-media-path '{rules.local_path}' is no folder.")

    async def read(self, url: str, kind: MediaKind) -> bytes:
        """The file behind a data:, file: or http(s) URL, which is to be of this kind. Raises RequestError."""
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            return decode_data_url(url, kind, self._rules.max_bytes)
        if scheme == "file":
            return await asyncio.to_thread(self._local, url, kind)
        if scheme in ("http", "https"):
            return await self._remote(url, kind)
        raise RequestError(f"The URL of {kind.with_article} begins with data:, https:// or http://.")

    # ---- files -------------------------------------------------------------------------------------------------------

    def _local(self, url: str, kind: MediaKind) -> bytes:
        if self._root is None:
            raise RequestError(f"This server reads no files; send the {kind.noun} as a data: URL.")
        refused = RequestError(f"The file is not one that this server reads; send the {kind.noun} as a data: URL.")
        path = unquote(url[len("file:") :])
        path = path.removeprefix("//localhost") if path.startswith("//localhost/") else path.removeprefix("//")
        try:
            parts = Path(path).resolve(strict=True).relative_to(self._root).parts if path.startswith("/") else ()
            return self._file(parts, kind)
        except RequestError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise refused from error

    def _file(self, parts: Sequence[str], kind: MediaKind) -> bytes:
        """A file below the root, opened folder by folder, none of which may be a link. Raises OSError, RequestError."""
        assert self._root is not None
        *folders, name = parts or ("",)
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for each in folders:
                inner = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError("no file")
            data = opened.read(self._rules.max_bytes + 1)
        if len(data) > self._rules.max_bytes:
            raise too_large(kind, self._rules.max_bytes)
        return data

    # ---- http --------------------------------------------------------------------------------------------------------

    async def _remote(self, url: str, kind: MediaKind) -> bytes:
        if not self._rules.domains:
            raise RequestError(f"This server fetches no {kind.noun}s; send the {kind.noun} as a data: URL.")
        # Not at the top: few servers fetch.
        import httpcore

        from tessera.media.network import PublicNetwork

        network = self._network or PublicNetwork()
        connections = httpcore.AsyncConnectionPool(self._tls, max_keepalive_connections=0, network_backend=network)
        try:
            async with asyncio.timeout(self._rules.seconds), connections as pool:
                for _ in range(self._rules.redirects + 1):
                    answer = await self._answer(pool, self._allowed(url, kind), kind)
                    if isinstance(answer, bytes):
                        return answer
                    url = answer
        except TimeoutError as error:
            raise RequestError(f"The {kind.noun} did not arrive within {self._rules.seconds:g} s.") from error
        except (httpcore.ConnectError, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise RequestError(f"The {kind.noun} could not be fetched from its host.") from error
        raise RequestError(f"The {kind.noun}'s URL redirects more than {self._rules.redirects} times.")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        import httpcore

        return httpcore.default_ssl_context()

    def _allowed(self, url: str, kind: MediaKind) -> httpx.URL:
        """Raises RequestError for a URL that the rules do not allow."""
        import httpx

        try:
            parsed = httpx.URL(url)
            host = parsed.raw_host.decode("ascii").lower().rstrip(".")
        except (httpx.InvalidURL, ValueError) as error:
            raise RequestError(f"The {kind.noun}'s URL is not valid.") from error
        if parsed.scheme not in ("http", "https") or not host or parsed.userinfo:
            raise RequestError(f"The {kind.noun}'s URL must have the form https://host/path.")
        if not any(_matches(host, domain.lower()) for domain in self._rules.domains):
            raise RequestError(
                f"This server fetches no {kind.noun}s from {host[:_SHOWN_CHARS]}; send the {kind.noun} as a data: URL."
            )
        return parsed

    async def _answer(self, pool: httpcore.AsyncConnectionPool, url: httpx.URL, kind: MediaKind) -> bytes | str:
        """The file, or the URL that its host redirects to. Raises RequestError and httpcore's errors."""
        import httpcore

        headers = ((b"Host", url.netloc), (b"Accept", kind.accept), (b"Accept-Encoding", b"identity"))
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        async with pool.stream("GET", target, headers=headers) as answer:
            fields = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
            if answer.status in _REDIRECTS and b"location" in fields:
                return str(url.join(fields[b"location"]))
            if answer.status != 200:
                raise RequestError(f"The {kind.noun}'s host answers with status {answer.status}.")
            check_media_type(fields.get(b"content-type", "application/octet-stream"), kind)
            if fields.get(b"content-encoding", "identity").lower() != "identity":
                raise RequestError(f"The {kind.noun}'s host sends it compressed, though it was asked not to.")
            if not fields.get(b"content-length", "0").isdecimal():
                raise RequestError(f"The {kind.noun}'s host sends no valid length.")
            data = bytearray()
            if int(fields.get(b"content-length", "0")[:20]) > self._rules.max_bytes:
                raise too_large(kind, self._rules.max_bytes)
            async for part in answer.aiter_stream():
                data += part
                if len(data) > self._rules.max_bytes:
                    raise too_large(kind, self._rules.max_bytes)
            return bytes(data)


def _matches(host: str, domain: str) -> bool:
    return domain in ("*", host) or (domain.startswith("*.") and host.endswith(domain[1:]))
