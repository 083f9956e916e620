"""Implements `tessera serve` on a host beside host 0, which has the server and the engine."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tessera.cli.listen import bind
from tessera.cli.serving import set_up
from tessera.config.build import parallel_config
from tessera.config.engine import ENGINE_FLAGS, ParallelConfig
from tessera.config.flags import given_values, record_of
from tessera.plugins import load_path
from tessera.server.settings import SERVER_FLAGS, ServeOptions

log = logging.getLogger(__name__)

HOST = "tessera.executor.host:Host"
"""A dotted path, since its package is of the engine's processes."""
REQUEST_SECONDS = 5.0


class RunningHost(Protocol):
    @property
    def is_ready(self) -> bool: ...
    def run(self) -> None: ...


def run_host(flags: Mapping[str, Any]) -> int:
    """Runs this host's share of the workers until host 0 ends, and returns the exit code. flags: the command's, by
    name; those of the model come from host 0. Raises TesseraError."""
    options = record_of(ServeOptions, SERVER_FLAGS, given_values(SERVER_FLAGS, flags, as_options=True))
    set_up(options)
    parallel = parallel_config(given_values(ENGINE_FLAGS, flags))
    make: Callable[[ParallelConfig], RunningHost] = load_path(HOST)
    host = make(parallel)
    with _HostServer(bind(options.host, options.port), host, f"host {parallel.node_rank} of {parallel.nnodes}"):
        try:
            host.run()
        except KeyboardInterrupt:
            return 0
    log.info("host 0 has ended the server")
    return 0


class _HostServer(ThreadingHTTPServer):
    """Answers health checks, since each host has a port."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, host: RunningHost, name: str) -> None:
        super().__init__(listener.getsockname()[:2], _Status, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.host, self.name = host, name

    def __enter__(self) -> _HostServer:
        threading.Thread(target=self.serve_forever, name="status", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Status(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _HostServer

    def do_GET(self) -> None:
        ready = self.server.host.is_ready
        match self.path:
            case "/livez":
                self._answer(200, {"status": "ok"})
            case "/readyz" | "/health":
                self._answer(200 if ready else 503, {"status": "ok" if ready else "waiting for host 0"})
            case _:
                self._answer(404, {"error": {"message": f"This is {self.server.name}; host 0 answers requests."}})

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Health checks are not logged."""
