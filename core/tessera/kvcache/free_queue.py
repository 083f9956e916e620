"""Which blocks are free, in the order in which they are reused, as one array: many come and go at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tessera.arrays import Array

NOWHERE = -1
LOOKED_THROUGH = 64  # entries at once at least, where some of them are gaps


class FreeQueue:
    """Blocks 1 to num_blocks - 1 at first.

    Entries between head and tail are blocks in order. Who is taken out of the middle leaves a gap, an entry that is not
    its block's place; gaps are closed when the array is full, which is so long that this is rare.
    """

    def __init__(self, num_blocks: int) -> None:
        self._entries: Array = np.zeros(2 * num_blocks, dtype=np.int32)
        self._place: Array = np.full(num_blocks, NOWHERE, dtype=np.int64)
        self._head = self._tail = self._count = 0
        self.add(np.arange(1, num_blocks, dtype=np.int32))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        blocks: list[int] = self._between(self._head, self._tail).tolist()
        return iter(blocks)

    def add(self, blocks: Array) -> None:
        """Behind all others, in this order; none of them may be there already."""
        if self._tail + len(blocks) > len(self._entries):
            self._close_gaps()
        end = self._tail + len(blocks)
        self._entries[self._tail : end] = blocks
        self._place[blocks] = np.arange(self._tail, end)
        self._tail = end
        self._count += len(blocks)

    def remove(self, blocks: Array) -> None:
        """From wherever they stand."""
        self._place[blocks] = NOWHERE
        self._count -= len(blocks)

    def take(self, count: int) -> Array:
        """[count] int32: the first ones, at least one, removed; there must be as many."""
        assert count <= self._count, "more blocks are taken than are free"
        end = self._head + count
        if self._tail - self._head == self._count:
            blocks: Array = self._entries[self._head : end].copy()
        else:
            end = self._end_of(count)
            blocks = self._between(self._head, end)
        self._head = end
        self.remove(blocks)
        return blocks

    def _end_of(self, count: int) -> int:
        """Where the first `count` blocks end, gaps among them."""
        first = self._head
        while True:
            last = min(first + max(count, LOOKED_THROUGH), self._tail)
            standing = np.flatnonzero(self._stands(first, last))
            if len(standing) >= count:
                return first + int(standing[count - 1]) + 1
            first, count = last, count - len(standing)

    def _between(self, first: int, last: int) -> Array:
        return self._entries[first:last][self._stands(first, last)]

    def _stands(self, first: int, last: int) -> Array:
        """Which of these entries are no gaps, as a mask."""
        stands: Array = self._place[self._entries[first:last]] == np.arange(first, last)
        return stands

    def _close_gaps(self) -> None:
        blocks = self._between(self._head, self._tail)
        self._head, self._tail = 0, len(blocks)
        self._entries[: self._tail] = blocks
        self._place[blocks] = np.arange(self._tail)
