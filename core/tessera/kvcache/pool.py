"""The blocks of one cache group: which are free, how many holders each has, and which is reused next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tessera.arrays import Array

NOWHERE = -1
LOOKED_THROUGH = 64  # the least number of entries to search at once when there are gaps


class BlockPool:
    """Blocks 1 to num_blocks - 1. Block 0 is the null block and is never allocated.

    [num_blocks] int32 each: ref_count is the number of holders of a block; leaving, how many of them leave once the
    steps in flight have retired; copying, how many steps in flight copy from it. The block that has been free longest
    is reused first. A free block keeps its content until it is reused; reused(blocks) is called at that point.
    """

    def __init__(self, num_blocks: int, reused: Callable[[list[int]], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self.ref_count = np.zeros(num_blocks, dtype=np.int32)
        self.leaving = np.zeros(num_blocks, dtype=np.int32)
        self.copying = np.zeros(num_blocks, dtype=np.int32)
        self.num_freed = 0
        self._free = FreeQueue(num_blocks)
        self._reused = reused

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_returning(self) -> int:
        """Blocks that become free once the steps in flight have retired."""
        return int(np.count_nonzero((self.ref_count == self.leaving) & (self.ref_count + self.copying > 0)))

    def allocate(self, count: int) -> Array:
        """[count] int32 blocks with one holder each. At least `count` blocks must be free."""
        blocks = self._free.take(count)
        if self._reused is not None:
            self._reused(blocks.tolist())
        self.ref_count[blocks] = 1
        return blocks

    def count_free(self, blocks: Array) -> int:
        """How many of these blocks are free, so that holding them reduces the number of free blocks."""
        return int(np.count_nonzero(self._unused(blocks)))

    def _unused(self, blocks: Array) -> Array:
        unused: Array = (self.ref_count[blocks] == 0) & (self.copying[blocks] == 0)
        return unused

    def touch(self, blocks: Array) -> None:
        """Adds a holder to each of these distinct blocks, which may be free."""
        self._free.remove(blocks[self._unused(blocks)])
        self.ref_count[blocks] += 1

    def leave(self, blocks: Array) -> None:
        """A holder of these distinct blocks is leaving; free() follows once no step in flight uses them."""
        self.leaving[blocks] += 1

    def free(self, blocks: Array, *, soon: bool = False) -> None:
        """Removes a holder that left from each of these distinct blocks. Blocks without a holder become free and are
        reused in this order. soon: before all others, since nobody will look for what they hold."""
        self.leaving[blocks] -= 1
        self.ref_count[blocks] -= 1
        self._free_unused(blocks, soon=soon)

    def release(self, blocks: Array) -> None:
        """Removes a holder that stays active from each of these distinct blocks, which no step in flight reads for
        it."""
        self.ref_count[blocks] -= 1
        self._free_unused(blocks)

    def copy(self, block: int) -> None:
        """Keeps a block for a step that copies from it, until copied(). It may be free."""
        self._free.remove(np.array([block])[self._unused(np.array([block]))])
        self.copying[block] += 1

    def copied(self, block: int) -> None:
        """The step that copied from this block has retired."""
        self.copying[block] -= 1
        self._free_unused(np.array([block]))

    def _free_unused(self, blocks: Array, *, soon: bool = False) -> None:
        unused = blocks[self._unused(blocks)]
        if soon:
            self._free.add_first(unused)
        else:
            self._free.add(unused)
        self.num_freed += len(unused)

    def check(self, holders: Array, leavers: Array, copies: Array) -> None:
        """Asserts that each block is exactly one of null, free and in use, and that holders, leavers and copies
        [num_blocks] account for every reference."""
        assert np.array_equal(self.ref_count, holders), "a block's reference count is not its number of holders"
        assert np.array_equal(self.leaving, leavers), "a block's holders that leave are not those that are going"
        assert np.array_equal(self.copying, copies), "a block is kept for a copy that is not made, or not kept for one"
        assert 0 not in self._free, "the null block is free"
        assert self.ref_count[0] == 0, "the null block is held"
        free = np.zeros(self.num_blocks, dtype=bool)
        free[list(self._free)] = True
        unused = self._unused(np.arange(self.num_blocks))
        assert np.array_equal(free[1:], unused[1:]), "a block is lost, or free and used at once"


class FreeQueue:
    """Free blocks in the order of reuse; initially 1 to num_blocks - 1. An array, because many come and go at once.

    The entries between head and tail are blocks in order. Removing a block from the middle leaves a gap: an entry that
    its block's place does not point to. Gaps are closed when the array is full, which is rare as the array is long.
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
        """Appends blocks in this order. None of them may be in the queue."""
        if self._tail + len(blocks) > len(self._entries):
            self._close_gaps()
        end = self._tail + len(blocks)
        self._entries[self._tail : end] = blocks
        self._place[blocks] = np.arange(self._tail, end)
        self._tail = end
        self._count += len(blocks)

    def add_first(self, blocks: Array) -> None:
        """Puts blocks in front of all others, in this order. None of them may be in the queue."""
        if self._head < len(blocks):
            self._close_gaps(first=len(blocks))
        start = self._head - len(blocks)
        self._entries[start : self._head] = blocks
        self._place[blocks] = np.arange(start, self._head)
        self._head = start
        self._count += len(blocks)

    def remove(self, blocks: Array) -> None:
        """Removes blocks from anywhere in the queue."""
        self._place[blocks] = NOWHERE
        self._count -= len(blocks)

    def take(self, count: int) -> Array:
        """Removes and returns the first `count` (at least 1) blocks, [count] int32. There must be that many."""
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
        """The entry after the first `count` blocks, counting the gaps between them."""
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
        """A mask of the entries that are not gaps."""
        stands: Array = self._place[self._entries[first:last]] == np.arange(first, last)
        return stands

    def _close_gaps(self, first: int = 0) -> None:
        """first: entries to leave before the head."""
        blocks = self._between(self._head, self._tail)
        self._head, self._tail = first, first + len(blocks)
        self._entries[first : self._tail] = blocks
        self._place[blocks] = np.arange(first, self._tail)
