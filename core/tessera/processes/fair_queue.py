"""A queue of jobs that serves owners in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from tessera.errors import OverloadedError

T = TypeVar("T")
SHARE = 4
"""An owner may fill this part of the queue, one fourth, so that the others find room."""


class FairQueue(Generic[T]):
    """Jobs of owners who take turns, each in order of arrival. max_size: of the sizes of all that wait, in bytes; a job
    that finds nothing of its owner waiting is taken at any size. overloaded: what the owner reads whose job finds no
    room. For one event loop."""

    def __init__(self, max_size: int, overloaded: str) -> None:
        self._max_size = max_size
        self._overloaded = overloaded
        self._waiting: dict[str, deque[tuple[T, int]]] = {}
        """By owner; the one whose turn is next comes first."""
        self._sizes: dict[str, int] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, owner: str, job: T, size: int) -> None:
        """Raises OverloadedError if the queue, or its owner's part, is full."""
        own = self._sizes.get(owner, 0)
        if own and (own + size > self._max_size // SHARE or sum(self._sizes.values()) + size > self._max_size):
            raise OverloadedError(self._overloaded)
        self._waiting.setdefault(owner, deque()).append((job, size))
        self._sizes[owner] = own + size
        self._filled.set()

    async def get(self) -> T:
        """The next job, once there is one."""
        await self._filled.wait()
        owner = next(iter(self._waiting))
        jobs = self._waiting.pop(owner)
        job, size = jobs.popleft()
        self._sizes[owner] -= size
        if jobs:
            self._waiting[owner] = jobs  # last, until the others have had their turns
        else:
            del self._sizes[owner]
        if not self._waiting:
            self._filled.clear()
        return job

    def drop(self, owner: str, job: T) -> None:
        """Removes a job, if it still waits."""
        jobs = self._waiting.get(owner, deque())
        for entry in jobs:
            if entry[0] is job:
                jobs.remove(entry)
                self._sizes[owner] -= entry[1]
                break
        if not jobs:
            self._waiting.pop(owner, None)
            self._sizes.pop(owner, None)
        if not self._waiting:
            self._filled.clear()
