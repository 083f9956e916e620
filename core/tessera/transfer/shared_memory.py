"""Transfers between two engines of one host: through memory that both have, where Linux can share it.

An engine that lends listens at a name in Linux's abstract namespace too, which ends with its process and which only
processes of the same network namespace and user reach. What is said there is what is said over TCP, but for pieces:
the source copies a chunk into a slot of a ring and says so with a byte, the other copies it to where it belongs and
gives the slot back with a byte. The ring is a sealed memfd that travels over the socket (memfd_create(2), unix(7)), so
nothing is left of it either when one of them dies."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from xxhash import xxh3_64

from tessera.platform.transfer import TransferError
from tessera.transfer.streams import Stream, chunks_of, receive_exactly

SLOT_BYTES = 512 << 10
NUM_SLOTS = 4
RING_BYTES = SLOT_BYTES * NUM_SLOTS
_TURN = b"\1"
_PEER = struct.Struct("3i")


def is_available() -> bool:
    return hasattr(os, "memfd_create") and hasattr(socket, "SO_PEERCRED")


def listen(engine_id: str, port: int) -> socket.socket:
    """port: where the engine listens over TCP. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(engine_id, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def connect(engine_id: str, port: int, seconds: float) -> socket.socket | None:
    """None if no such engine of this host and user listens."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(seconds)
    try:
        link.connect(_name(engine_id, port))
        if not is_own_user(link):
            raise PermissionError
    except OSError:
        link.close()
        return None
    return link


def is_local(link: socket.socket) -> bool:
    """Whether memory can be sent over it."""
    return link.family not in (socket.AF_INET, socket.AF_INET6)


def is_own_user(link: socket.socket) -> bool:
    """Whether a process of the same user is at the other end."""
    _, user, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.geteuid())


def _name(engine_id: str, port: int) -> str:
    return f"\0tessera-kv-{port}-{engine_id[:64]}"


class SharedStream(Stream):
    """Through a ring of slots. Whoever sends makes it."""

    def __init__(self, link: socket.socket, descriptor: int) -> None:
        """descriptor: of the ring, which is closed. Raises TransferError for one that its other owner could shorten:
        reading it would then end the process."""
        self._link = link
        # Slots that were filled, and that were given back.
        self._num_filled = self._num_free = 0
        try:
            if os.fstat(descriptor).st_size != RING_BYTES or not _is_sealed(descriptor):
                raise TransferError("what it shares is no memory of a fixed size")
            self._memory = np.frombuffer(mmap.mmap(descriptor, RING_BYTES), np.uint8)
        finally:
            os.close(descriptor)
        self._slots = self._memory.reshape(NUM_SLOTS, SLOT_BYTES)

    @classmethod
    def offer(cls, link: socket.socket) -> SharedStream:
        """The side that sends. Raises TransferError, OSError."""
        descriptor = os.memfd_create("tessera-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, RING_BYTES)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(link, [_TURN], [descriptor])
        except OSError:
            os.close(descriptor)
            raise
        return cls(link, descriptor)

    @classmethod
    def accept(cls, link: socket.socket) -> SharedStream:
        """The side that receives. Raises TransferError, OSError, EOFError."""
        data, descriptors, _, _ = socket.recv_fds(link, 1, 1)
        if not data:
            raise EOFError
        if len(descriptors) != 1:
            raise TransferError("it shares no memory")
        return cls(link, descriptors[0])

    def send_parts(self, parts: Sequence[memoryview]) -> None:
        digest = xxh3_64()
        for chunk in chunks_of(parts, SLOT_BYTES):
            if self._num_filled - self._num_free == NUM_SLOTS:
                self._take_back()
            slot = self._slots[self._num_filled % NUM_SLOTS, : len(chunk)]
            np.copyto(slot, np.frombuffer(chunk, np.uint8))
            digest.update(slot.data)
            self._link.sendall(_TURN)
            self._num_filled += 1
        self._link.sendall(digest.digest())

    def receive_parts(self, parts: Sequence[memoryview]) -> bool:
        digest = xxh3_64()
        for chunk in chunks_of(parts, SLOT_BYTES):
            if receive_exactly(self._link, 1) != _TURN:
                raise TransferError("it says something that no engine says")
            np.copyto(np.frombuffer(chunk, np.uint8), self._slots[self._num_filled % NUM_SLOTS, : len(chunk)])
            with suppress(BrokenPipeError, ConnectionResetError):  # what it said before it left can still be read
                self._link.sendall(_TURN)
            self._num_filled += 1
            digest.update(chunk)  # not of the slot, which the other side could still change
        return receive_exactly(self._link, digest.digest_size) == digest.digest()

    def finish(self) -> None:
        while self._num_free < self._num_filled:
            self._take_back()

    def _take_back(self) -> None:
        """Waits for slots that the other side gives back."""
        given = len(self._link.recv(self._num_filled - self._num_free))
        if not given:
            raise EOFError
        self._num_free += given


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if is_available() else 0


def _is_sealed(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # no memfd
        return False
