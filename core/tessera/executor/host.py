"""A host beside host 0: joins it, runs its share of the workers, and does so again for the next engine."""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress

from tessera._version import __version__
from tessera.config.engine import ParallelConfig
from tessera.errors import PlatformError
from tessera.executor.joining import Hello, HostWork, Leave, join
from tessera.executor.messages import MessageStream
from tessera.executor.workers import gloo_variables
from tessera.platform.platform import WorkerSpec
from tessera.processes.child import Child
from tessera.processes.interfaces import interface_of
from tessera.processes.peers import read_key

log = logging.getLogger(__name__)

JOIN_SECONDS = 600.0
"""How long host 0 may be away: it starts, or restarts its engine."""
RETRY_SECONDS = 1.0
LOOK_SECONDS = 1.0
"""Between two looks at the workers."""
END_SECONDS = 10.0


class Host:
    def __init__(self, parallel: ParallelConfig) -> None:
        """Raises ConfigError."""
        self._parallel = parallel
        self._key = read_key(parallel.cluster_key_file)
        # Whether all of its workers run.
        self.is_ready = False

    def run(self) -> None:
        """Returns when host 0 says that the server has ended. Raises PlatformError if this host may not join, or if
        host 0 has been away for too long."""
        while not self._serve_engine():
            log.warning("host 0 is gone; the workers have ended, and this host joins again when it is back")

    def _serve_engine(self) -> bool:
        """Runs the workers of one engine. Returns whether it ended in order, with the server."""
        folder = tempfile.mkdtemp(prefix="tessera-")
        try:
            link = self._join(folder)
            with link:
                return self._run_workers(link, folder)
        finally:
            self.is_ready = False
            shutil.rmtree(folder, ignore_errors=True)

    def _hello(self, folder: str, rank: int | None = None) -> Hello:
        return Hello(self._parallel.node_rank, rank, folder, __version__)

    def _join(self, folder: str) -> socket.socket:
        address, port = self._parallel.master_addr, self._parallel.master_port
        log.info("waiting for host 0 at %s port %d", address, port)
        deadline = time.monotonic() + JOIN_SECONDS
        while time.monotonic() < deadline:
            try:
                return join(address, port, self._hello(folder), self._key)
            except (OSError, EOFError):
                time.sleep(RETRY_SECONDS)
        raise PlatformError(f"there was no host 0 at {address} port {port} for {JOIN_SECONDS:.0f} s; start it first.")

    def _run_workers(self, link: socket.socket, folder: str) -> bool:
        stream = MessageStream(link, HostWork | Leave)
        try:
            work = stream.receive()
        except (EOFError, OSError):
            return False
        if isinstance(work, Leave):
            return True
        mine, lifeline = os.pipe()
        workers: list[Child] = []
        try:
            interface = interface_of(link.getsockname()[0])
            for spec in work.specs:
                workers.append(self._start(spec, folder, mine, interface))
            self.is_ready = True
            log.info("running workers %s of host 0's engine", ", ".join(str(spec.rank) for spec in work.specs))
            return self._watch(stream, work.specs, workers)
        except (EOFError, OSError):
            return False
        finally:
            for worker in workers:
                worker.end()
            os.close(mine)
            os.close(lifeline)

    def _start(self, spec: WorkerSpec, folder: str, lifeline: int, interface: str | None) -> Child:
        """A worker with a connection of its own to host 0. Raises OSError and EOFError if host 0 is gone, PlatformError
        if there can be no process."""
        parallel = self._parallel
        with join(parallel.master_addr, parallel.master_port, self._hello(folder, spec.rank), self._key) as link:
            threads = {} if spec.threads is None else {"OMP_NUM_THREADS": str(spec.threads)}
            try:
                return Child(
                    "tessera.executor.worker_process",
                    str(link.fileno()),
                    str(lifeline),
                    variables={**gloo_variables(interface), **threads, **spec.environment},
                    pass_fds=(link.fileno(), lifeline),
                    stdin=subprocess.DEVNULL,
                )
            except OSError as error:
                raise PlatformError(
                    f"worker {spec.rank} could not be started ({error.strerror}); allow more processes and open files."
                ) from error

    def _watch(self, stream: MessageStream, specs: Sequence[WorkerSpec], workers: Sequence[Child]) -> bool:
        """Until host 0 ends or is gone. Raises EOFError, OSError."""
        ended: set[int] = set()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not selector.select(LOOK_SECONDS):
                for spec, worker in zip(specs, workers, strict=True):
                    if spec.rank not in ended and not worker.is_running:
                        ended.add(spec.rank)
                        # Its connection has ended with it, which host 0 sees.
                        log.log(
                            logging.ERROR if worker.wait() else logging.INFO,
                            "worker %d ended with exit code %d",
                            spec.rank,
                            worker.wait(),
                        )
        stream.receive()  # Leave
        deadline = time.monotonic() + END_SECONDS
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
        return True
