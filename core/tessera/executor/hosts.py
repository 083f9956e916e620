"""An executor whose workers are on several hosts. The engine and its first workers are on host 0; each further host
joins it, starts its share of the workers, and connects each of them. Those get the same orders, over TCP."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from tessera.config import EngineConfig
from tessera.errors import EngineStepError, PlatformError
from tessera.executor.base import Report
from tessera.executor.joining import Hello, HostWork, Leave, NotAdmittedError, admit, read_key
from tessera.executor.messages import MessageStream
from tessera.executor.workers import LOOPBACK, WorkerHandle, WorkersExecutor
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.platform import WorkerSpec
from tessera.platform.runner import Progress
from tessera.processes.interfaces import interface_of

log = logging.getLogger(__name__)


class HostsExecutor(WorkersExecutor):
    """Hosts have consecutive ranks, the same number each."""

    def __init__(self, config: EngineConfig) -> None:
        self._specs: Sequence[WorkerSpec] = ()
        self._hosts: dict[int, _HostLink] = {}
        super().__init__(config)

    def start_workers(self, specs: Sequence[WorkerSpec], interface: str | None = LOOPBACK) -> None:
        """Only once the hosts have joined, since that says over which interface they can be reached."""
        if len(specs) != self.config.parallel.world_size:
            raise PlatformError(
                f"platform '{self.platform.name}' drives several devices from one process, which it does on one host "
                "alone; remove --nnodes."
            )
        self._specs = specs

    @property
    def rendezvous(self) -> str:
        parallel = self.config.parallel
        address = f"[{parallel.master_addr}]" if ":" in parallel.master_addr else parallel.master_addr
        return f"tcp://{address}:{parallel.master_port + 1}"

    def load(self, report: Report) -> list[LoadedModel]:
        parallel = self.config.parallel
        key = read_key(parallel.cluster_key_file)
        if not key:
            log.warning(
                "whoever reaches %s port %d can join as a host; set --cluster-key-file to prevent that",
                parallel.master_addr,
                parallel.master_port,
            )
        with self._listener() as listener:
            self._gather(listener, key, report)
            own = self._specs[: parallel.host_size]
            interface = interface_of(next(iter(self._hosts.values())).own_address)
            super().start_workers(own, interface)
            for number, host in self._hosts.items():
                first = number * parallel.host_size
                host.stream.send(HostWork(self._specs[first : first + parallel.host_size]))
            self._connect_workers(listener, key)
        self.workers.sort(key=lambda worker: worker.spec.rank)
        return super().load(report)

    def _listener(self) -> socket.socket:
        """Raises PlatformError."""
        parallel = self.config.parallel
        try:
            family, _, _, _, address = socket.getaddrinfo(
                parallel.master_addr, parallel.master_port, type=socket.SOCK_STREAM
            )[0]
            return socket.create_server(address[:2], family=family)
        except OSError as error:
            raise PlatformError(
                f"host 0 cannot listen at {parallel.master_addr} port {parallel.master_port} ({error.strerror}); "
                "--master-addr must be an address of this host, and --master-port free."
            ) from error

    def _gather(self, listener: socket.socket, key: bytes, report: Report) -> None:
        """Returns when all hosts have joined."""
        expected = self.config.parallel.nnodes
        report(Progress("hosts", 1, expected))
        while len(self._hosts) < expected - 1:
            link, hello = self._admitted(listener, key)
            if hello.rank is not None or not 0 < hello.host < expected:
                # A worker of an engine before this one, or a host with other flags.
                log.warning("host %d, worker %s, does not belong to this engine", hello.host, hello.rank)
                link.close()
                continue
            if hello.host in self._hosts:
                log.warning("host %d joins once more; the connection before is dropped", hello.host)
                self._hosts[hello.host].stream.close()
            self._hosts[hello.host] = _HostLink(link, hello)
            report(Progress("hosts", 1 + len(self._hosts), expected))
            log.info("host %d joined; %d of %d", hello.host, 1 + len(self._hosts), expected)

    def _connect_workers(self, listener: socket.socket, key: bytes) -> None:
        """Returns when each worker of the other hosts is connected. Raises EngineStepError if a host is gone."""
        remote = {spec.rank: spec for spec in self._specs[self.config.parallel.host_size :]}
        while len(self.workers) < len(self._specs):
            link, hello = self._admitted(listener, key)
            spec = None if hello.rank is None else remote.pop(hello.rank, None)
            if spec is None:
                link.close()
                continue
            self.workers.append(RemoteWorker(spec, link, hello))

    def _admitted(self, listener: socket.socket, key: bytes) -> tuple[socket.socket, Hello]:
        """The next connection that may join. Raises EngineStepError if a host that had joined is gone."""
        while True:
            self._wait(listener)
            link, address = listener.accept()
            try:
                return link, admit(link, key)
            except (NotAdmittedError, OSError, EOFError) as error:
                link.close()
                log.warning("%s does not join: %s", address[0], str(error) or "it has closed the connection.")

    def _wait(self, listener: socket.socket) -> None:
        """Until somebody connects. Hosts say nothing, so that what can be read of one is its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for number, host in self._hosts.items():
                selector.register(host.stream, selectors.EVENT_READ, number)
            gone = [key.data for key, _ in selector.select() if key.data is not None]
        if gone:
            raise EngineStepError(f"host {gone[0]} is gone; its log says why.")

    def close(self) -> None:
        super().close()
        for host in self._hosts.values():
            with suppress(OSError):
                host.stream.send(Leave())
            host.stream.close()


class _HostLink:
    """The connection to another host."""

    def __init__(self, link: socket.socket, hello: Hello) -> None:
        self.hello = hello
        # This host's address, as that one reaches it.
        self.own_address: str = link.getsockname()[0]
        self.stream = MessageStream(link, Leave)


class RemoteWorker(WorkerHandle):
    """A worker on another host, which starts it and ends it."""

    def __init__(self, spec: WorkerSpec, link: socket.socket, hello: Hello) -> None:
        super().__init__(spec, link, hello.folder)
        self._link = link
        self._host = hello.host

    def end(self, deadline: float) -> None:
        """The end of its connection is its own: its host kills it if it does not end by itself."""
        with suppress(OSError):
            self._link.settimeout(max(0.01, deadline - time.monotonic()))
            while self._link.recv(2**16):
                pass
        self.stream.close()

    def describe_end(self) -> str:
        return f"of host {self._host} is gone; the log of that host says why."
