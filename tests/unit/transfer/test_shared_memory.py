"""Caches through memory that two processes share: it is taken where it can be, and nothing of it stays."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.errors import ConfigError
from tessera.platform.transfer import TransferError
from tessera.transfer import shared_memory, tcp
from tessera.transfer.shared_memory import NUM_SLOTS, RING_BYTES, SLOT_BYTES, SharedStream
from tests.unit.transfer.source import DIGEST, Side, end, sides

pytestmark = pytest.mark.skipif(not shared_memory.is_available(), reason="this system shares no memory over sockets")

NUMBERS = np.random.default_rng(5).random((6000, 2), np.float32)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "PIECE_BYTES", 1000)


@pytest.fixture
def links() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def shared(number: int = 6000, **config: Any) -> tuple[Side, Side]:
    source, target = Side(24, number, **config), Side(32, number, **config)
    source.store.numbers[:] = NUMBERS[:number]
    return source, target


def test_engines_of_one_host_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = []
    offer = SharedStream.offer
    monkeypatch.setattr(SharedStream, "offer", lambda link: offered.append(link) or offer(link))
    source, target = shared()
    with sides(source, target):
        assert end(target.connector.fetch(source.lend(6000), DIGEST), 5984) == ""
        assert np.array_equal(target.store.numbers[:5984], NUMBERS[:5984])
    assert len(offered) == 1


@pytest.mark.parametrize("at", ["source", "target"])
def test_either_side_may_leave_it(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedStream, "offer", lambda link: pytest.fail("it was shared"))
    units = {"source": 24, "target": 32}
    source, target = (Side(unit, 6000, extra={"shared_memory": at != side}) for side, unit in units.items())
    source.store.numbers[:] = NUMBERS
    with sides(source, target):
        assert end(target.connector.fetch(source.lend(6000), DIGEST), 5984) == ""
        assert np.array_equal(target.store.numbers[:5984], NUMBERS[:5984])


def test_what_it_takes_is_said() -> None:
    with pytest.raises(ConfigError, match="shared_memory in kv_connector_extra_config must be true or false"):
        Side(24, 48, extra={"shared_memory": "yes"})


@pytest.mark.parametrize(
    "sizes", [[1], [SLOT_BYTES], [SLOT_BYTES + 1, 7], [NUM_SLOTS * RING_BYTES // 3, 3, SLOT_BYTES]]
)
def test_parts_of_any_size_go_through_the_ring(links: tuple[socket.socket, socket.socket], sizes: list[int]) -> None:
    near, far = links
    parts = [memoryview(np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()) for size in sizes]
    room = [memoryview(bytearray(size)) for size in sizes]
    sender = SharedStream.offer(near)
    receiver = SharedStream.accept(far)
    with ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            sending = thread.submit(sender.send_parts, parts)
            assert receiver.receive_parts(room)
            sending.result()
            assert room == parts
        sender.finish()
    far.sendall(b"after")
    assert near.recv(9) == b"after", "no byte of the ring is left in the connection"


def test_a_byte_that_changes_in_the_ring_is_noticed(
    links: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = links
    sender, receiver = SharedStream.offer(near), SharedStream.accept(far)
    sender.send_parts([memoryview(bytes(1000))])
    receiver._slots[0, 500] ^= 1
    assert not receiver.receive_parts([memoryview(bytearray(1000))])


@pytest.mark.parametrize("kind", ["not sealed", "another size", "a file", "nothing"])
def test_memory_that_could_shrink_is_refused(
    links: tuple[socket.socket, socket.socket], kind: str, tmp_path: Path
) -> None:
    """Whoever reads behind its end is ended by the system."""
    near, far = links
    if kind == "nothing":
        near.sendall(b"\1")
    else:
        path, flags = tmp_path / "file", os.O_RDWR | os.O_CREAT
        descriptor = os.open(path, flags) if kind == "a file" else os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, RING_BYTES - 4096 if kind == "another size" else RING_BYTES)
        if kind == "another size":
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        socket.send_fds(near, [b"\1"], [descriptor])
        os.close(descriptor)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TransferError, match="shares no memory|no memory of a fixed size"):
        SharedStream.accept(far)
    assert len(os.listdir("/proc/self/fd")) <= before


def _lend_and_die(ready: Any) -> None:
    source = Side(24, 6000)
    source.store.before = lambda number: os._exit(9) if number == 4 else None
    ready.send((source.connector.port, source.lend(6000)))
    time.sleep(60)


def test_nothing_is_left_of_a_source_that_dies() -> None:
    near, far = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_lend_and_die, args=(far,))
    process.start()
    _, params = near.recv()
    target = Side(32, 6000)
    descriptors = len(os.listdir("/proc/self/fd"))
    with sides(target):
        said = end(target.connector.fetch(params, DIGEST), 5984)
        assert "has closed the connection" in said or "does not answer" in said
        process.join()
        assert process.exitcode == 9
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert "tessera-kv" not in Path("/proc/self/maps").read_text(encoding="utf-8")
        assert f"tessera-kv-{params.remote_port}-" not in Path("/proc/net/unix").read_text(encoding="utf-8")
