"""The examples of proxies in deploy/, run on ports of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.certificates import Authority, Identity
from tests.e2e.served import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
STARTING_SECONDS = 20.0
SITE = "llm.example.com"
UPSTREAM = "127.0.0.1:8000"
BODY_MIB = 3
"""That nginx lets pass, in place of what its example says. Caddy has no limit unless one is set."""
AROUND_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/errors;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {example};
}}
"""
AROUND_CADDY = "{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{example}"


def replaced(text: str, replacements: Mapping[str, str]) -> str:
    """Each is there once: an example that was changed has a test that is changed."""
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@dataclass(frozen=True)
class Place:
    """Where an example runs, instead of where it says."""

    # for its files
    folder: Path
    # on which it listens
    port: int
    # of the server behind it
    upstream: int
    certificate: Identity
    # that it lets an upstream be silent
    silent_seconds: int


def nginx(place: Place) -> list[str]:
    """The command that runs the example."""
    example = replaced(
        (DEPLOY / "nginx/tessera.conf").read_text(encoding="utf-8"),
        {
            UPSTREAM: f"127.0.0.1:{place.upstream}",
            "listen 443 ssl": f"listen 127.0.0.1:{place.port} ssl",
            "/etc/ssl/example.pem": str(place.certificate.certificate),
            "/etc/ssl/example.key": str(place.certificate.key),
            "client_max_body_size 201m": f"client_max_body_size {BODY_MIB}m",
            "600s": f"{place.silent_seconds}s",
        },
    )
    (place.folder / "tessera.conf").write_text(example, encoding="utf-8")
    around = AROUND_NGINX.format(folder=place.folder, example=place.folder / "tessera.conf")
    (place.folder / "nginx.conf").write_text(around, encoding="utf-8")
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None
    return [program, "-c", str(place.folder / "nginx.conf"), "-e", str(place.folder / "errors")]


def caddy(place: Place) -> list[str]:
    """The command that runs the example."""
    example = replaced(
        (DEPLOY / "caddy/Caddyfile").read_text(encoding="utf-8"),
        {
            UPSTREAM: f"127.0.0.1:{place.upstream}",
            f"{SITE} {{": f"https://localhost:{place.port} {{\n"
            f"\ttls {place.certificate.certificate} {place.certificate.key}",
            "600s": f"{place.silent_seconds}s",
        },
    )
    (place.folder / "Caddyfile").write_text(AROUND_CADDY.format(example=example), encoding="utf-8")
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(place.folder / "Caddyfile")]


EXAMPLES = {"nginx": nginx, "caddy": caddy}


class Client(httpx.AsyncClient):
    """Of a proxy, whose certificate it trusts."""

    def __init__(self, port: int, authority: Identity) -> None:
        self.port, self.trust = port, ssl.create_default_context(cafile=str(authority.certificate))
        super().__init__(base_url=f"https://localhost:{port}", verify=self.trust, timeout=60)


@asynccontextmanager
async def proxy(name: str, upstream: int, folder: Path, *, silent_seconds: int = 600) -> AsyncIterator[Client]:
    """A client of one, once that answers. upstream: the port of the server behind it."""
    authority = Authority(folder)
    place = Place(folder, free_port(), upstream, authority.issue("proxy"), silent_seconds)
    home = {variable: str(folder) for variable in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *EXAMPLES[name](place), env=os.environ | home, stdin=DEVNULL, stdout=log, stderr=log
        )
    try:
        async with Client(place.port, authority.identity) as client:
            async with asyncio.timeout(STARTING_SECONDS):
                while not await _answers(client):
                    assert process.returncode is None, (folder / "log").read_text(encoding="utf-8")
                    await asyncio.sleep(0.05)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _answers(client: Client) -> bool:
    with suppress(httpx.TransportError):
        await client.get("/")
        return True
    return False
