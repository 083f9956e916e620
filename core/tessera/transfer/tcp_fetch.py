"""What TcpConnector fetches: a cache that an engine lends, over TCP or through memory of this host."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from tessera.config.kv_transfer import KVTransferConfig, is_loopback
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.transfer import EngineCache, Fetch, KVPiece, TokenBlocks, TransferError
from tessera.transfer import shared_memory
from tessera.transfer.pieces import BlockPieces, CanonicalPieces, Pieces
from tessera.transfer.shared_memory import SharedStream, is_local
from tessera.transfer.streams import SocketStream, Stream, receive_exactly
from tessera.transfer.wire import (
    HANDSHAKE_SECONDS,
    MAX_PIECE_BYTES,
    PIECE,
    Arrived,
    Granted,
    Waiting,
    Wanted,
    join,
    receive,
    send,
    signature,
)

_SIGNS = 6
"""Whoever waits gives so many signs of it in the time of a lease."""


class TcpFetch(Fetch):
    def __init__(
        self, config: KVTransferConfig, cache: EngineCache, params: KVTransferParams, digest: bytes, *, shares: bool
    ) -> None:
        """shares: whether memory is shared with an engine of this host."""
        self._shares = shares
        self._config, self._cache, self._params, self._digest = config, cache, params, digest
        self._request_id = params.remote_request_id or ""
        # Whether a part of the tokens is of use: not where windows and states are only those of the end.
        self._grows = all(section.window is None and not section.is_state for section in cache.format.sections)
        self._error: TransferError | None = None
        self._room: tuple[TokenBlocks, int, int] | None = None
        self._link: socket.socket | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._told, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-fetch", daemon=True)
        self._thread.start()

    # ---- contract

    def start(self, tokens: TokenBlocks, first: int, last: int) -> None:
        self._room = tokens, first, last
        self._told.set()

    def is_done(self) -> bool:
        return self._done.is_set()

    def error(self) -> TransferError | None:
        return self._error

    def cancel(self) -> None:
        self._cancelled = True
        self._told.set()
        if self._room is None:
            return  # it has nowhere to write to, and ends by itself
        with self._lock:
            if self._link is not None:
                with suppress(OSError):
                    self._link.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def join(self, seconds: float) -> None:
        """Waits for its thread, after cancel()."""
        self._thread.join(seconds)

    # ---- on its own thread

    def _run(self) -> None:
        where = f"{self._params.remote_host} port {self._params.remote_port}"
        try:
            self._check()
            with self._connect() as link:
                self._fetch(link, join(link, self._cache.key))
        except TransferError as error:
            self._error = TransferError(f"of the engine at {where}: {error}")
        except EOFError:
            self._error = TransferError(f"the engine at {where} has closed the connection")
        except OSError as error:
            self._error = TransferError(f"the engine at {where} does not answer ({error.strerror or error})")
        except Exception:
            self._error = TransferError("its transfer has failed here")
            raise
        finally:
            self._done.set()

    def _connect(self) -> socket.socket:
        """To an engine of this host over a socket that memory can be sent over. Raises OSError."""
        engine, port = self._params.remote_engine_id or "", self._params.remote_port or 0
        link = shared_memory.connect(engine, port, HANDSHAKE_SECONDS) if self._shares else None
        return link or socket.create_connection((self._params.remote_host or "", port), timeout=HANDSHAKE_SECONDS)

    def _check(self) -> None:
        """Raises TransferError for params that no engine of this cluster wrote."""
        params, key = self._params, self._cache.key
        if key and not hmac.compare_digest(params.remote_signature or "", signature(key, params)):
            raise TransferError("its remote_signature is not by this engine's cluster key")
        if not key and not is_loopback(params.remote_host or ""):
            raise TransferError("without --cluster-key-file only engines of this host are asked")

    def _fetch(self, link: socket.socket, lease_seconds: float) -> None:
        while not self._told.wait(lease_seconds / _SIGNS):
            send(link, Waiting(self._request_id))
        if self._room is None:
            send(link, Arrived(self._request_id))
            return
        with self._lock:
            self._link = link
        try:
            if not self._cancelled:
                link.settimeout(self._config.timeout_seconds)
                self._receive(link, *self._room)
                send(link, Arrived(self._request_id))
        finally:
            with self._lock:
                self._link = None

    def _receive(self, link: socket.socket, tokens: TokenBlocks, first: int, last: int) -> None:
        """One piece is received and checked while the one before is written. Raises TransferError, OSError,
        EOFError."""
        cache, store = self._cache, self._cache.store
        send(
            link,
            Wanted(self._request_id, self._digest, cache.format, first, last, store.unit, store.block_format),
        )
        granted = receive(link, Granted)
        each = granted.num_tokens
        if each <= 0 or each % store.unit or cache.format.most_bytes(each) > MAX_PIECE_BYTES:
            raise TransferError(f"it sends pieces of {each} tokens")
        if granted.as_blocks and not store.block_format:
            raise TransferError("it sends blocks, which this engine did not ask for")
        stream: Stream = SharedStream.accept(link) if is_local(link) else SocketStream(link)
        pieces: Pieces = BlockPieces(store) if granted.as_blocks else CanonicalPieces(cache, each)
        with ThreadPoolExecutor(1, "kv-write", initializer=store.enter_thread) as writer:
            writing: list[Future[None]] = []
            for piece in cache.format.pieces(first, last, store.unit, each):
                parts = pieces.room(tokens, piece)
                _receive_piece(stream, link, piece, parts)
                for earlier in writing:
                    earlier.result()
                writing = [writer.submit(self._write, pieces, tokens, piece, parts)]
            for earlier in writing:
                earlier.result()
            self.num_tokens = last - first

    def _write(self, pieces: Pieces, tokens: TokenBlocks, piece: KVPiece, parts: Sequence[memoryview]) -> None:
        if self._cancelled:
            raise TransferError("it was cancelled")
        pieces.write(tokens, piece, parts)
        if self._grows:
            self.num_tokens += piece.last - piece.first
        self.num_bytes += sum(map(len, parts))


def _receive_piece(stream: Stream, link: socket.socket, piece: KVPiece, parts: Sequence[memoryview]) -> None:
    """Fills the parts. Raises TransferError, OSError, EOFError."""
    start, end, size = PIECE.unpack(receive_exactly(link, PIECE.size))
    if start == end:
        raise TransferError("its blocks were needed there")
    if (start, end, size) != (piece.first, piece.last, sum(map(len, parts))):
        raise TransferError(f"it sends tokens {start} to {end} where {piece.first} to {piece.last} are due")
    if not stream.receive_parts(parts):
        raise TransferError(f"tokens {piece.first} to {piece.last} have arrived damaged")
