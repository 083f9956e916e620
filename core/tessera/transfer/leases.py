"""What an engine has lent: blocks that it keeps until another engine has fetched them, or gives no more sign."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tessera.platform.transfer import Lease, Leases


@dataclass
class _Entry:
    lease: Lease
    # On time.monotonic().
    expires_at: float
    # Threads that read its blocks.
    readers: int = 0
    # Whether the engine wants its blocks.
    called_back: bool = False
    # Whether they have arrived.
    arrived: bool = False


class LeaseTable(Leases):
    """Used by the engine's thread, which adds leases and takes their blocks back, and by a connector's."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        # By request_id, oldest first.
        self._entries: dict[str, _Entry] = {}
        self._num_bytes_sent = 0
        self._num_expired = 0

    # ---- for a connector

    @property
    def seconds(self) -> float:
        return self._seconds

    def renew(self, request_id: str) -> bool:
        with self._lock:
            entry = self._entries.get(request_id)
            if entry is None or entry.called_back:
                return False
            entry.expires_at = time.monotonic() + self._seconds
            return True

    @contextmanager
    def reading(self, request_id: str, digest: bytes) -> Iterator[Lease | None]:
        with self._lock:
            entry = self._entries.get(request_id)
            if entry is None or entry.called_back or entry.lease.digest != digest:
                entry = None
            else:
                entry.readers += 1
        if entry is None:
            yield None
            return
        try:
            yield entry.lease
        finally:
            with self._lock:
                entry.readers -= 1
                entry.expires_at = time.monotonic() + self._seconds

    def is_called_back(self, request_id: str) -> bool:
        with self._lock:
            entry = self._entries.get(request_id)
            return entry is None or entry.called_back

    def end(self, request_id: str) -> None:
        with self._lock:
            if request_id in self._entries:
                self._entries[request_id].arrived = True

    def add_sent(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes_sent += num_bytes

    # ---- for the engine

    @property
    def num_bytes_sent(self) -> int:
        return self._num_bytes_sent

    @property
    def num_expired(self) -> int:
        """Leases that nobody asked for in time."""
        return self._num_expired

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._entries[lease.request_id] = _Entry(lease, time.monotonic() + self._seconds)

    def leases(self) -> list[Lease]:
        """All whose blocks are kept."""
        with self._lock:
            return [entry.lease for entry in self._entries.values()]

    def call_back(self) -> bool:
        """Gives up the oldest lease that is not given up yet. False if there is none."""
        with self._lock:
            entry = next((one for one in self._entries.values() if not one.called_back), None)
            if entry is not None:
                entry.called_back = True
            return entry is not None

    def take_ended(self) -> list[Lease]:
        """Removes and returns those that nobody reads and that have arrived, expired or been called back."""
        if not self._entries:
            return []
        now, ended = time.monotonic(), []
        with self._lock:
            for request_id, entry in list(self._entries.items()):
                late = now >= entry.expires_at
                if not entry.readers and (entry.arrived or entry.called_back or late):
                    self._num_expired += late and not entry.arrived and not entry.called_back
                    ended.append(self._entries.pop(request_id).lease)
        return ended
