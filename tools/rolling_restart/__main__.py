"""Restarts two servers in turn behind nginx, under load, and counts the requests that users lose: none may be.

Run: python -m tools.rolling_restart [--clients 8] [--keep-alive]

nginx has its own defaults: it tries the other server if it cannot connect or gets no answer, but never repeats a POST
that it has sent, and leaves a server alone for 10 s after a failure. --keep-alive lets it keep connections to servers
open, which is not its default. The servers have --listen-when-ready and --shutdown-delay.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from tools.local_server import LIMITED, TESSERA, free_port
from tools.rolling_restart.load import Load

FAIL_TIMEOUT_SECONDS = 10.0
"""nginx's own."""
READY_SECONDS = 120.0
FLAGS = ("--listen-when-ready", "--shutdown-delay", "2", "--threads", "1", "--allowed-hosts", "servers")
"""nginx sends the name of the group of servers as Host."""
NGINX = """
daemon off;
master_process off;
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
    upstream servers {{
        server 127.0.0.1:{first};
        server 127.0.0.1:{second};
        {keep_alive}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://servers;
            {version}
        }}
    }}
}}
"""
KEEP_ALIVE = ("keepalive 32;", 'proxy_http_version 1.1; proxy_set_header Connection "";')


@contextmanager
def proxy(servers: list[int], port: int, folder: Path, *, keep_alive: bool) -> Iterator[None]:
    kept, version = KEEP_ALIVE if keep_alive else ("", "")
    first, second = servers
    (folder / "nginx.conf").write_text(
        NGINX.format(folder=folder, first=first, second=second, port=port, keep_alive=kept, version=version)
    )
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise SystemExit("nginx is not installed.")
    nginx = subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")])
    try:
        yield
    finally:
        nginx.terminate()
        nginx.wait(10)


@asynccontextmanager
async def server(port: int, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server, once it is ready; it is told to end when the block ends."""
    with (folder / f"log-{port}").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *TESSERA, "--port", str(port), *LIMITED, *FLAGS, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(READY_SECONDS), httpx.AsyncClient() as http:
            while not await _is_ready(http, port):
                if process.returncode is not None:
                    raise SystemExit((folder / f"log-{port}").read_text())
                await asyncio.sleep(0.1)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(http: httpx.AsyncClient, port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
    return False


async def restarted(clients: int, folder: Path, *, keep_alive: bool) -> Counter[str]:
    """How the requests ended while each of two servers was restarted."""
    ports, port = [free_port(), free_port()], free_port()
    async with AsyncExitStack() as running:
        each = [await running.enter_async_context(server(one, folder)) for one in ports]
        running.enter_context(proxy(ports, port, folder, keep_alive=keep_alive))
        load = Load(f"http://127.0.0.1:{port}")
        asking = asyncio.create_task(load.run(clients))
        try:
            await asyncio.sleep(3)
            for place, one in enumerate(ports):
                each[place].terminate()
                await each[place].wait()
                print(f"server {place + 1} has ended with {each[place].returncode}: {dict(load.outcomes)}", flush=True)
                each[place] = await running.enter_async_context(server(one, folder))
                # nginx tries it again after this time; until then the other one may not go.
                await asyncio.sleep(FAIL_TIMEOUT_SECONDS + 2)
                print(f"server {place + 1} is back: {dict(load.outcomes)}", flush=True)
        finally:
            load.stop()
            await asking
    print((folder / "errors").read_text()[-2000:])
    return load.outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--keep-alive", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rolling-") as folder:
        outcomes = asyncio.run(restarted(given.clients, Path(folder), keep_alive=given.keep_alive))
    lost = outcomes.total() - outcomes["answered"]
    print(f"{outcomes['answered']} requests answered, {lost} lost.")
    sys.exit(lost > 0 or outcomes["answered"] < 100)


if __name__ == "__main__":
    main()
