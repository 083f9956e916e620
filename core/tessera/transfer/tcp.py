"""TcpConnector: caches over TCP, or through memory of one host, from the engine that has them to the one that asks;
tcp_fetch.py is the other side."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import lcm

import msgspec

from tessera.config.kv_transfer import FLAG, KVTransferConfig
from tessera.errors import ConfigError
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.transfer import (
    EngineCache,
    KVConnector,
    KVPiece,
    Lease,
    TransferError,
)
from tessera.transfer import shared_memory
from tessera.transfer.pieces import BlockPieces, CanonicalPieces, Pieces
from tessera.transfer.shared_memory import SharedStream, is_local
from tessera.transfer.streams import SocketStream, Stream
from tessera.transfer.tcp_fetch import TcpFetch
from tessera.transfer.wire import (
    PIECE,
    Arrived,
    Granted,
    Waiting,
    Wanted,
    admit,
    receive,
    refuse,
    send,
    signature,
)

log = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20
"""About so much is read, sent and written at once, so that this is what a transfer holds on the host, twice."""
MAX_CONNECTIONS = 64
"""To one engine at once; whoever comes then computes its prompt."""
CLOSE_SECONDS = 2.0
"""That a fetch without room, which nothing writes for, has to end when the engine does."""


class TcpConnector(KVConnector):
    """Listens where the engine lends. A transfer has a connection, and two threads on either side: one moves bytes
    between the socket and memory, the other between memory and the cache."""

    def __init__(self, config: KVTransferConfig, cache: EngineCache) -> None:
        super().__init__(config, cache)
        self._links: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._fetches: list[TcpFetch] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._shares = _shares(config)
        self._listeners: list[socket.socket] = []
        self.port = 0
        if config.lends:
            self._listeners.append(_listen(config))
            self.port = self._listeners[0].getsockname()[1]
            if self._shares:
                self._listen_to_this_host()
        for listener in self._listeners:
            entrance = threading.Thread(target=self._accept, args=(listener,), name="kv-transfer", daemon=True)
            self._threads.add(entrance)
            entrance.start()

    # ---- contract

    def describe(self, lease: Lease) -> KVTransferParams:
        params = KVTransferParams(
            do_remote_prefill=True,
            do_remote_decode=False,
            remote_engine_id=self.cache.engine_id,
            remote_request_id=lease.request_id,
            remote_block_ids=(),
            remote_host=self.config.kv_ip,
            remote_port=self.port,
            tp_size=1,
            remote_num_tokens=lease.num_tokens,
            remote_state_tokens=lease.state_tokens,
            remote_blocks_expiry_time=time.time() + self.config.lease_seconds,
            transfer_mode="pull",
        )
        return msgspec.structs.replace(params, remote_signature=signature(self.cache.key, params))

    def fetch(self, params: KVTransferParams, digest: bytes) -> TcpFetch:
        fetch = TcpFetch(self.config, self.cache, params, digest, shares=self._shares)
        self._fetches = [*(one for one in self._fetches if not one.is_done()), fetch]
        return fetch

    def close(self) -> None:
        self._closing.set()
        for fetch in self._fetches:
            fetch.cancel()
            fetch.join(CLOSE_SECONDS)
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for link in self._links:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    # ---- the source

    def _listen_to_this_host(self) -> None:
        try:
            self._listeners.append(shared_memory.listen(self.cache.engine_id, self.port))
        except OSError as error:
            log.info("memory is not shared with engines of this host (%s)", error.strerror)

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                link, address = listener.accept()
            except OSError:
                return  # closed
            if is_local(link) and not shared_memory.is_own_user(link):
                link.close()
                continue
            name = "an engine of this host" if is_local(link) else address[0]
            thread = threading.Thread(target=self._serve, args=(link, name), name="kv-source", daemon=True)
            with self._lock:
                full = self._closing.is_set() or len(self._links) >= MAX_CONNECTIONS
                if not full:
                    self._links.add(link)
                    self._threads.add(thread)
            if full:
                log.warning("%s is not served: %d transfers are under way", name, MAX_CONNECTIONS)
                link.close()
            else:
                thread.start()

    def _serve(self, link: socket.socket, address: str) -> None:
        try:
            admit(link, self.cache.key, self.cache.leases.seconds)
            link.settimeout(self.cache.leases.seconds)
            while True:
                self._answer(link, receive(link, Waiting | Wanted | Arrived))
        except EOFError:
            pass
        except (TransferError, OSError) as error:
            if not self._closing.is_set():
                log.warning("a transfer to %s has ended: %s", address, error)
        finally:
            link.close()
            with self._lock:
                self._links.discard(link)
                self._threads.discard(threading.current_thread())

    def _answer(self, link: socket.socket, message: Waiting | Wanted | Arrived) -> None:
        """Raises TransferError, OSError, EOFError."""
        leases = self.cache.leases
        if isinstance(message, Arrived):
            leases.end(message.request_id)
        elif isinstance(message, Waiting):
            leases.renew(message.request_id)
        else:
            self._lend(link, message)

    def _lend(self, link: socket.socket, wanted: Wanted) -> None:
        cache = self.cache
        if wanted.format.model != cache.format.model:
            refuse(link, "it serves another model, or the same with other weights or another quantization")
        if wanted.format != cache.format:
            refuse(link, "it keeps other keys and values; dtype and --kv-cache-dtype must be the same")
        with cache.leases.reading(wanted.request_id, wanted.digest) as lease:
            if lease is None:
                refuse(link, "it has no such cache any more, or one of other tokens")
            if not 0 <= wanted.first < wanted.last <= lease.num_tokens or not 0 < wanted.unit <= wanted.last:
                refuse(link, f"it has tokens 0 to {lease.num_tokens} only")
            unit = lcm(wanted.unit, cache.store.unit)
            each = unit * max(1, PIECE_BYTES // cache.format.most_bytes(unit))
            coming = cache.format.pieces(wanted.first, wanted.last, wanted.unit, each)
            if not all(cache.store.holds(lease.tokens, piece) for piece in coming):
                refuse(link, f"it has no windows or states any more by which to go on behind token {wanted.last}")
            as_blocks = self._have_equal_blocks(wanted)
            send(link, Granted(each, as_blocks))
            pieces: Pieces = BlockPieces(cache.store) if as_blocks else CanonicalPieces(cache, each)
            stream: Stream = SharedStream.offer(link) if is_local(link) else SocketStream(link)
            self._send_pieces(stream, link, lease, coming, pieces)
            stream.finish()

    def _have_equal_blocks(self, wanted: Wanted) -> bool:
        store = self.cache.store
        return (
            bool(store.block_format)
            and wanted.block_format == store.block_format
            and (wanted.first % store.unit == wanted.last % store.unit == 0)
        )

    def _send_pieces(
        self, stream: Stream, link: socket.socket, lease: Lease, wanted: Sequence[KVPiece], pieces: Pieces
    ) -> None:
        """One piece is read while the one before is sent."""
        cache = self.cache

        def read(piece: KVPiece) -> tuple[bytes, Sequence[memoryview]]:
            parts = pieces.read(lease.tokens, piece)
            return PIECE.pack(piece.first, piece.last, sum(map(len, parts))), parts

        with ThreadPoolExecutor(1, "kv-read", initializer=cache.store.enter_thread) as reader:
            coming = reader.submit(read, wanted[0])
            for following in (*wanted[1:], None):
                header, parts = coming.result()
                if cache.leases.is_called_back(lease.request_id):
                    link.sendall(PIECE.pack(0, 0, 0))
                    raise TransferError("its blocks are needed here")
                if following is not None:
                    coming = reader.submit(read, following)
                link.sendall(header)
                stream.send_parts(parts)
                cache.leases.add_sent(sum(map(len, parts)))


def _shares(config: KVTransferConfig) -> bool:
    """Raises ConfigError."""
    wanted = config.extra.get("shared_memory", True)
    if not isinstance(wanted, bool):
        raise ConfigError(f"{FLAG}: shared_memory in kv_connector_extra_config must be true or false.", param=FLAG)
    return wanted and shared_memory.is_available()


def _listen(config: KVTransferConfig) -> socket.socket:
    """Raises ConfigError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(config.kv_ip, config.kv_port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError(
            f"{FLAG}: cannot listen at kv_ip '{config.kv_ip}', kv_port {config.kv_port} ({error.strerror}); name an "
            "address of this host and a free port.",
            param=FLAG,
        ) from error
