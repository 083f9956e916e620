"""Engines without a model: what a connector moves from and to, and a connection that breaks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.kv_transfer import KVTransferConfig
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.transfer import (
    CacheFormat,
    EngineCache,
    Fetch,
    KVPiece,
    LayerFormat,
    Lease,
    PlaneFormat,
    TokenBlocks,
    TokenStore,
)
from tessera.transfer.leases import LeaseTable
from tessera.transfer.tcp import TcpConnector

LAYERS = (LayerFormat(0, (PlaneFormat("k", "float32", (("dim", 2),)),)),)
FORM = CacheFormat("model", LAYERS)
DIGEST = b"digest"


class Memory(TokenStore):
    """[tokens, 2] float32, with a place for each position."""

    def __init__(self, unit: int, num_tokens: int) -> None:
        self.layers, self.unit = LAYERS, unit
        self.numbers: Array = np.zeros((num_tokens, 2), np.float32)
        # Called before each piece is read or written, with the number of pieces before it.
        self.before: Callable[[int], None] = lambda number: None
        self.num_pieces = 0

    def enter_thread(self) -> None:
        pass

    def holds(self, tokens: TokenBlocks, piece: KVPiece) -> bool:
        return piece.last <= len(self.numbers)

    def memory(self, tokens: TokenBlocks, piece: KVPiece) -> list[memoryview]:
        """In parts of one unit, as blocks that are not next to one another."""
        assert self.block_format
        units = range(piece.first, piece.last, self.unit)
        return [memoryview(self.numbers[start : start + self.unit].data).cast("B") for start in units]

    def read(self, tokens: TokenBlocks, piece: KVPiece, out: memoryview) -> None:
        self.before(self.num_pieces)
        self.num_pieces += 1
        out[: (piece.last - piece.first) * 8] = self.numbers[piece.first : piece.last].tobytes()

    def write(self, tokens: TokenBlocks, piece: KVPiece, data: memoryview) -> None:
        _, first, last = piece
        assert first % self.unit == 0
        assert last % self.unit == 0
        self.before(self.num_pieces)
        self.num_pieces += 1
        self.numbers[first:last] = np.frombuffer(data, np.float32).reshape(-1, 2)


class Side:
    """One engine's connector."""

    def __init__(
        self, unit: int, num_tokens: int, *, key: bytes = b"key", form: CacheFormat = FORM, **config: Any
    ) -> None:
        self.store = Memory(unit, num_tokens)
        self.config = KVTransferConfig("TcpConnector", "kv_both", kv_port=0, **config)
        self.leases = LeaseTable(self.config.lease_seconds)
        self.connector = TcpConnector(self.config, EngineCache("engine", form, self.store, self.leases, key))

    def lend(self, num_tokens: int, digest: bytes = DIGEST) -> KVTransferParams:
        lease = Lease("lease", TokenBlocks(0, (int32(),)), num_tokens, digest)
        self.leases.add(lease)
        return self.connector.describe(lease)


@contextmanager
def sides(*made: Side) -> Iterator[None]:
    try:
        yield
    finally:
        for side in made:
            side.connector.close()


def wait(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def end(fetch: Fetch, last: int, first: int = 0) -> str:
    """Fetches these tokens. Returns why not all arrived, if they did not."""
    fetch.start(TokenBlocks(first, (int32(),)), first, last)
    wait(fetch.is_done)
    return str(fetch.error() or "")


class Relay:
    """Between whoever fetches and the source: passes on what the source sends, until `passes` says otherwise."""

    def __init__(self, port: int, change: Callable[[int, bytes], bytes | None]) -> None:
        """change: of the bytes before and the next ones, what to send on; None cuts the connection."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._source, self._change = port, change
        threading.Thread(target=self._run_until_closed, daemon=True).start()

    def _run_until_closed(self) -> None:
        with suppress(OSError):
            self._run()

    def _run(self) -> None:
        with self._listener:
            near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._source))
        threading.Thread(target=self._back, args=(near, far), daemon=True).start()
        done = 0
        with near, far:
            while data := far.recv(1 << 16):
                changed = self._change(done, data)
                done += len(data)
                if changed is None:
                    break
                near.sendall(changed)
            near.shutdown(socket.SHUT_RDWR)
            far.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _back(near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(1 << 16):
                far.sendall(data)
