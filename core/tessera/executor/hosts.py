"""An executor whose workers are on several hosts. The engine and its first workers are on host 0; each further host
joins it, starts its share of the workers, and connects each of them. Those get the same orders, over TCP."""

from __future__ import annotations

import logging
import select
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tessera.config import EngineConfig
from tessera.config.engine import ParallelConfig
from tessera.errors import EngineStepError, PlatformError
from tessera.executor.base import Report
from tessera.executor.joining import Hello, HostWork, Leave, NotAdmittedError, admit
from tessera.executor.messages import MessageStream
from tessera.executor.workers import LOOPBACK, WorkerHandle, WorkersExecutor
from tessera.platform.loaded_model import LoadedModel
from tessera.platform.platform import WorkerSpec
from tessera.platform.runner import Progress
from tessera.processes.interfaces import interface_of
from tessera.processes.peers import read_key

log = logging.getLogger(__name__)


class HostsExecutor(WorkersExecutor):
    """Hosts have consecutive ranks, the same number each."""

    def __init__(self, config: EngineConfig) -> None:
        self._specs: Sequence[WorkerSpec] = ()
        self._hosts: dict[int, HostLink] = {}
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
        with _listener(parallel) as listener:
            entrance = Entrance(listener, key)
            self._hosts = entrance.gather(parallel.nnodes, report)
            own = self._specs[: parallel.host_size]
            interface = interface_of(next(iter(self._hosts.values())).own_address)
            super().start_workers(own, interface)
            for number, host in self._hosts.items():
                first = number * parallel.host_size
                host.stream.send(HostWork(self._specs[first : first + parallel.host_size]))
            self.workers += entrance.workers(self._specs[parallel.host_size :], self._hosts)
        self.workers.sort(key=lambda worker: worker.spec.rank)
        return super().load(report)

    def close(self) -> None:
        super().close()
        for host in self._hosts.values():
            with suppress(OSError):
                host.stream.send(Leave())
            host.stream.close()


def _listener(parallel: ParallelConfig) -> socket.socket:
    """Raises PlatformError."""
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


class HostLink:
    """The connection to another host."""

    def __init__(self, link: socket.socket) -> None:
        # This host's address, as that one reaches it.
        self.own_address: str = link.getsockname()[0]
        self.stream = MessageStream(link, Leave)


class Entrance:
    """Where hosts and their workers join."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener, self._key = listener, key

    def gather(self, num_hosts: int, report: Report) -> dict[int, HostLink]:
        """The other hosts, by number, once all have joined. One that goes meanwhile may join again."""
        hosts: dict[int, HostLink] = {}
        report(Progress("hosts", 1, num_hosts))
        while len(hosts) < num_hosts - 1:
            for number in self._wait(hosts):
                log.warning("host %d is gone again", number)
                hosts.pop(number).stream.close()
            admitted = self._admitted()
            if admitted is None:
                continue
            link, hello = admitted
            if hello.rank is not None or not 0 < hello.host < num_hosts:
                # A worker of an engine before this one, or a host with other flags.
                log.warning("host %d, worker %s, does not belong to this engine", hello.host, hello.rank)
                link.close()
                continue
            if hello.host in hosts:
                log.warning("host %d joins once more; the connection before is dropped", hello.host)
                hosts[hello.host].stream.close()
            hosts[hello.host] = HostLink(link)
            report(Progress("hosts", 1 + len(hosts), num_hosts))
            log.info("host %d joined; %d of %d", hello.host, 1 + len(hosts), num_hosts)
        return hosts

    def workers(self, specs: Sequence[WorkerSpec], hosts: Mapping[int, HostLink]) -> list[WorkerHandle]:
        """Those of the other hosts, once all are connected. Raises EngineStepError if a host is gone."""
        missing = {spec.rank: spec for spec in specs}
        workers: list[WorkerHandle] = []
        while missing:
            for number in self._wait(hosts):
                raise EngineStepError(f"host {number} is gone; its log says why.")
            admitted = self._admitted()
            if admitted is None:
                continue
            link, hello = admitted
            spec = None if hello.rank is None else missing.pop(hello.rank, None)
            if spec is None:
                link.close()
            else:
                workers.append(RemoteWorker(spec, link, hello))
        return workers

    def _wait(self, hosts: Mapping[int, HostLink]) -> list[int]:
        """Until somebody connects, or a host is gone; returns those. Hosts say nothing, so that what can be read of one
        is its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            for number, host in hosts.items():
                selector.register(host.stream, selectors.EVENT_READ, number)
            return [key.data for key, _ in selector.select() if key.data is not None]

    def _admitted(self) -> tuple[socket.socket, Hello] | None:
        """The next connection; None if there is none, or if it may not join."""
        if not select.select([self._listener], [], [], 0)[0]:
            return None
        link, address = self._listener.accept()
        try:
            return link, admit(link, self._key)
        except (NotAdmittedError, OSError, EOFError) as error:
            link.close()
            log.warning("%s does not join: %s", address[0], str(error) or "it has closed the connection.")
            return None


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
