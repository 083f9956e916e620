"""Who is let in as a host of an engine, and as a worker of one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tessera._version import __version__
from tessera.errors import EngineStepError
from tessera.executor.hosts import Entrance
from tessera.executor.joining import Hello, join
from tessera.platform.platform import WorkerSpec
from tessera.platform.runner import Progress

KEY = b"a secret"
SPECS = [WorkerSpec(rank, 3, (0,)) for rank in (1, 2)]


@contextmanager
def entrance() -> Iterator[tuple[Entrance, Callable[..., socket.socket]]]:
    """With the way in: enter(host, rank)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def enter(host: int, rank: int | None = None) -> socket.socket:
            return join("127.0.0.1", port, Hello(host, rank, f"/folder-{host}", __version__), KEY)

        yield Entrance(listener, KEY), enter


def meanwhile(arrive: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=arrive)
    thread.start()
    return thread


def test_a_host_that_goes_before_the_others_have_come_may_join_again() -> None:
    reports: list[Progress] = []
    links: list[socket.socket] = []
    with entrance() as (gate, enter):

        def arrive() -> None:
            enter(1).close()
            links.append(enter(2))
            enter(7).close()  # a host of another engine
            enter(1, rank=4).close()  # a worker of one before this
            links.append(enter(1))

        thread = meanwhile(arrive)
        hosts = gate.gather(3, reports.append)
        thread.join()
    assert sorted(hosts) == [1, 2]
    assert all(host.own_address == "127.0.0.1" for host in hosts.values())
    assert reports[0] == Progress("hosts", 1, 3)
    assert reports[-1] == Progress("hosts", 3, 3)
    for end in (*links, *(host.stream for host in hosts.values())):
        end.close()


def test_workers_come_in_any_order_and_once() -> None:
    with entrance() as (gate, enter):
        links: list[socket.socket] = []

        def arrive() -> None:
            for rank in (2, 5, 2, 1):
                links.append(enter(rank, rank=rank))

        thread = meanwhile(arrive)
        workers = gate.workers(SPECS, {})
        thread.join()
    assert [(worker.spec.rank, worker.folder) for worker in workers] == [(2, "/folder-2"), (1, "/folder-1")]
    for end in (*links, *(worker.stream for worker in workers)):
        end.close()


def test_a_host_that_goes_while_its_workers_come_ends_the_start() -> None:
    with entrance() as (gate, enter):
        thread = meanwhile(lambda: enter(1).close())
        hosts = gate.gather(2, lambda _: None)
        thread.join()
        with pytest.raises(EngineStepError, match="host 1 is gone; its log says why"):
            gate.workers(SPECS, hosts)
    hosts[1].stream.close()
