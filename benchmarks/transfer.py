"""How fast caches move between engines, beside a plain copy over a socket.

    python -m benchmarks.transfer

Two processes of this host exchange a prompt's cache over TcpConnector. Both have blocks of 32 tokens in the order of
the CPU platform's kernels (`--form equal`), or the one that sends has blocks of 24 as (token, head, dim) (`--form
caches`), or both copy from and to plain memory, which leaves out what caches cost (`--form memory`). `--over memory`
is through memory that both processes share. In turns with it the same number of bytes is sent over a TCP socket, from
memory as large into memory as large. Printed are GB/s of both and the processor time of both processes (medians), and
the ratio of speeds in the same round (median, least and most).
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from typing import IO, Literal

import msgspec
import numpy as np
import torch

from tessera.arrays import Array, int32
from tessera.config.kv_transfer import KVTransferConfig
from tessera.platform import (
    CacheFormat,
    CacheGroup,
    CacheNeeds,
    CachePlan,
    EngineCache,
    FullAttentionSpec,
    HostDevice,
    KVLayout,
    KVPiece,
    KVTransferParams,
    Lease,
    MemoryFigures,
    Plane,
    TokenBlocks,
    TokenStore,
)
from tessera.runner.kv_memory import CacheMemory
from tessera.runner.token_store import CacheTokens
from tessera.transfer.leases import LeaseTable
from tessera.transfer.tcp import PIECE_BYTES, TcpConnector

Form = Literal["equal", "caches", "memory"]
Over = Literal["tcp", "memory"]
HEADS, DIM, DTYPE = 8, 128, "bfloat16"
DIGEST = b"prompt"
CONNECT_SECONDS = 0.05
"""Until a fetch waits for room."""


def plain_layout(size: int) -> KVLayout:
    axes = (("token", size), ("head", HEADS), ("dim", DIM))
    return KVLayout((Plane("k", DTYPE, axes), Plane("v", DTYPE, axes)))


def split_layout(size: int) -> KVLayout:
    """As the CPU platform's kernels have it."""
    keys = (("head", HEADS), ("token", size // 16), ("dim", DIM // 2), ("token", 16), ("dim", 2))
    values = (("head", HEADS), ("token", size // 2), ("dim", DIM), ("token", 2))
    return KVLayout((Plane("k", DTYPE, keys), Plane("v", DTYPE, values)))


class PlainMemory(TokenStore):
    """A cache that is in canonical form as it stands: what a transfer costs without the work on its two ends."""

    def __init__(self, form: CacheFormat, unit: int, num_tokens: int) -> None:
        self.layers, self.unit = form.layers, unit
        self._token_bytes = form.most_bytes(1)
        self._bytes: Array = np.ones(num_tokens * self._token_bytes, np.uint8)

    def enter_thread(self) -> None:
        """Nothing to do."""

    def holds(self, tokens: TokenBlocks, piece: KVPiece) -> bool:
        return True

    def read(self, tokens: TokenBlocks, piece: KVPiece, out: memoryview) -> None:
        np.copyto(np.frombuffer(out, np.uint8), self._part(piece))

    def write(self, tokens: TokenBlocks, piece: KVPiece, data: memoryview) -> None:
        np.copyto(self._part(piece), np.frombuffer(data, np.uint8))

    def _part(self, piece: KVPiece) -> Array:
        return self._bytes[piece.first * self._token_bytes : piece.last * self._token_bytes]


class Side:
    """One engine's connector and cache. size: tokens of a block."""

    def __init__(
        self, form: Form, layout: Literal["plain", "split"], size: int, layers: int, num_tokens: int, over: Over
    ) -> None:
        make = plain_layout if layout == "plain" else split_layout
        spec = FullAttentionSpec(HEADS, DIM, DTYPE)
        needs = {layer: CacheNeeds(layer, spec, (size,), True, "int32", 64, make) for layer in range(layers)}
        blocks = num_tokens // size
        group = CacheGroup(tuple(needs), "paged", size, layers * make(size).nbytes, blocks + 1)
        plan = CachePlan((group,), 1, num_tokens)
        device = HostDevice(torch, MemoryFigures(0, 0, host=True))
        small = CachePlan((CacheGroup(tuple(needs), "paged", size, group.block_bytes, 1),), 1, size)
        self.format = CacheFormat("model", CacheTokens(CacheMemory(small, needs, device), small).layers)
        store: TokenStore = PlainMemory(self.format, size, num_tokens)
        if form != "memory":
            memory = CacheMemory(plan, needs, device)
            for buffer in memory.buffers[0]:
                buffer.fill_(1)  # so that its pages are there
            store = CacheTokens(memory, plan)
        self.tokens = TokenBlocks(0, (int32(range(1, blocks + 1)),))
        self.leases = LeaseTable(60.0)
        config = KVTransferConfig(
            "TcpConnector",
            "kv_both",
            kv_port=0,
            lease_seconds=60.0,
            timeout_seconds=60.0,
            extra={"shared_memory": over == "memory"},
        )
        self.connector = TcpConnector(config, EngineCache("engine", self.format, store, self.leases, b""))


def source(form: Form, layers: int, num_tokens: int, over: Over) -> None:
    """The process that has the cache. Each line that it reads says what to do, and it answers with one."""
    side = Side(form, *(("split", 32) if form == "equal" else ("plain", 24)), layers, num_tokens, over)
    data = memoryview(bytearray(b"\1" * side.format.most_bytes(num_tokens)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        for line in sys.stdin:
            if line == "clock\n":
                print(time.process_time(), flush=True)
                continue
            if line == "transfer\n":
                side.leases.add(Lease("lease", side.tokens, num_tokens, DIGEST))
                print(json.dumps(side.connector.describe(side.leases.leases()[-1]).as_fields()), flush=True)
                continue
            receiver, _ = listener.accept()
            with receiver:
                for start in range(0, len(data), PIECE_BYTES):
                    receiver.sendall(data[start : start + PIECE_BYTES])
    side.connector.close()


class SourceProcess:
    def __init__(self, options: argparse.Namespace, num_bytes: int) -> None:
        command = [sys.executable, "-m", "benchmarks.transfer", "--source", "--form", options.form]
        command += ["--over", options.over, "--layers", str(options.layers), "--tokens", str(options.tokens)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # Of plain copies, as large as the cache: a copy from and to the same few megabytes would not leave the
        # processor's own memory, and be half again as fast.
        self._room = memoryview(bytearray(b"\1" * num_bytes))
        self._port = int(self._pipe(self._process.stdout).readline())

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _tell(self, word: str) -> None:
        self._pipe(self._process.stdin).write(f"{word}\n")
        self._pipe(self._process.stdin).flush()

    def processor_seconds(self) -> float:
        """That both processes have used so far."""
        self._tell("clock")
        return float(self._pipe(self._process.stdout).readline()) + time.process_time()

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait()

    def copy(self, num_bytes: int) -> float:
        """Seconds of a plain copy."""
        self._tell("copy")
        with socket.create_connection(("127.0.0.1", self._port)) as receiver:
            began, done = time.perf_counter(), 0
            while done < num_bytes:
                done += receiver.recv_into(self._room[done : done + PIECE_BYTES])
            return time.perf_counter() - began

    def transfer(self, side: Side, num_tokens: int) -> float:
        """Seconds of a transfer, from when there is room for it."""
        self._tell("transfer")
        params = msgspec.convert(json.loads(self._pipe(self._process.stdout).readline()), KVTransferParams)
        fetch = side.connector.fetch(params, DIGEST)
        time.sleep(CONNECT_SECONDS)
        began = time.perf_counter()
        fetch.start(side.tokens, 0, num_tokens)
        while not fetch.is_done():
            time.sleep(0.0002)
        took = time.perf_counter() - began
        if (error := fetch.error()) is not None:
            raise error
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=("equal", "caches", "memory"), default="equal")
    parser.add_argument("--over", choices=("tcp", "memory"), default="tcp", help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4032, help="a multiple of 96 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--source", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.source:
        source(options.form, options.layers, options.tokens, options.over)
        return
    side = Side(options.form, "split", 32, options.layers, options.tokens, options.over)
    num_bytes = side.format.most_bytes(options.tokens)
    process = SourceProcess(options, num_bytes)
    print(
        f"{num_bytes / 1e6:.0f} MB: {options.tokens} tokens, {options.layers} layers, {HEADS} heads of {DIM} in {DTYPE}"
    )
    rounds = []
    for _ in range(options.rounds + 1):
        clocks = [process.processor_seconds()]
        plain = process.copy(num_bytes)
        clocks.append(process.processor_seconds())
        moved = process.transfer(side, options.tokens)
        clocks.append(process.processor_seconds())
        rounds.append((plain, moved, clocks[1] - clocks[0], clocks[2] - clocks[1]))
    process.close()
    side.connector.close()
    # The first round is a warm-up.
    plains, moves, plain_clocks, move_clocks = zip(*rounds[1:], strict=True)
    for name, took, used in (("plain copy", plains, plain_clocks), ("transfer", moves, move_clocks)):
        speed, work = num_bytes / 1e9 / statistics.median(took), statistics.median(used) / (num_bytes / 1e9)
        print(f"{name:10} {speed:6.2f} GB/s, {work:.2f} s of processor time for a GB")
    shares = sorted(one / other for one, other in zip(plains, moves, strict=True))
    print(f"transfer to plain copy: {statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})")


if __name__ == "__main__":
    main()
