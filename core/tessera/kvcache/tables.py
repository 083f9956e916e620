"""Block tables of all rows, by group: the blocks rows hold, the blocks they share until one is written (copy on write),
and the blocks behind their sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array, int32
from tessera.kvcache.copies import BlockCopies
from tessera.kvcache.pool import BlockPool
from tessera.platform.runner import CacheGroup
from tessera.step import BlockDelta

Entry = tuple[Array, Array, Array, Array]


class BlockTables:
    """blocks[group] [num_rows, max_blocks] int32: block numbers. A row holds those from starts[group] to counts[group]
    (both [num_rows] int32); the entries before and after are 0 (null)."""

    def __init__(self, num_rows: int, max_blocks: Sequence[int]) -> None:
        self.blocks = [np.zeros((num_rows, count), dtype=np.int32) for count in max_blocks]
        self.starts = [np.zeros(num_rows, dtype=np.int32) for _ in max_blocks]
        self.counts = [np.zeros(num_rows, dtype=np.int32) for _ in max_blocks]
        self._changes: list[list[Entry]] = [[] for _ in max_blocks]

    def row_blocks(self, group: int, row: int) -> Array:
        """The blocks of a row by place, null where it no longer holds one (a view)."""
        return self.blocks[group][row, : self.counts[group][row]]

    def live_blocks(self, group: int, row: int) -> Array:
        """The blocks that a row holds (a view)."""
        return self.blocks[group][row, self.starts[group][row] : self.counts[group][row]]

    def begin(self, group: int, row: int, blocks: Array) -> None:
        """Gives an empty row its first blocks; any nulls come first."""
        self.append(group, int32([row]), int32([len(blocks)]), blocks)
        self.starts[group][row] = np.count_nonzero(blocks == 0)

    def give_up(self, group: int, row: int, end: int) -> Array:
        """Removes and returns the blocks a row holds before place `end`; their entries become null."""
        start = int(self.starts[group][row])
        blocks = self.blocks[group][row, start:end].copy()
        nulls = np.zeros(end - start, dtype=np.int32)
        self.blocks[group][row, start:end] = nulls
        self.starts[group][row] = end
        self._changes[group].append((int32([row]), int32([start]), int32([end - start]), nulls))
        return blocks

    def append(self, group: int, rows: Array, counts: Array, blocks: Array) -> None:
        """Appends counts[i] (at least 1) of blocks to row rows[i]."""
        have = self.counts[group][rows]
        if len(blocks) == len(rows):
            self.blocks[group][rows, have] = blocks
        else:
            places = np.arange(len(blocks), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts - have, counts)
            self.blocks[group][np.repeat(rows, counts), places] = blocks
        self.counts[group][rows] = have + counts
        self._changes[group].append((int32(rows), have, counts, blocks))

    def replace(self, group: int, row: int, index: int, block: int) -> None:
        self.blocks[group][row, index] = block
        self._changes[group].append((int32([row]), int32([index]), int32([1]), int32([block])))

    def swap(self, group: int, row: int, first: int, other: int) -> None:
        """Exchanges two blocks of a row."""
        blocks = self.blocks[group][row, [first, other]].tolist()
        self.replace(group, row, first, blocks[1])
        self.replace(group, row, other, blocks[0])

    def clear(self, row: int) -> None:
        for blocks, starts, counts in zip(self.blocks, self.starts, self.counts, strict=True):
            blocks[row, : counts[row]] = 0
            starts[row] = counts[row] = 0

    def take_changes(self) -> list[BlockDelta]:
        """By group, the entries appended, replaced and given up since the last call, in order."""
        deltas = []
        for entries in self._changes:
            if not entries:
                deltas.append(BlockDelta(int32(), int32(), int32(), int32()))
            elif len(entries) == 1:
                deltas.append(BlockDelta(*entries[0]))
            else:
                deltas.append(BlockDelta(*(np.concatenate(parts) for parts in zip(*entries, strict=True))))
            entries.clear()
        return deltas

    def withdraw(self, row: int) -> None:
        """Discards the changes that take_changes() has not returned yet of a row that no step has used."""
        for entries in self._changes:
            entries[:] = [kept for entry in entries if (kept := _without(entry, row)) is not None]


def _without(entry: Entry, row: int) -> Entry | None:
    rows, starts, counts, blocks = entry
    keep = rows != row
    if keep.all():
        return entry
    if not keep.any():
        return None
    return rows[keep], starts[keep], counts[keep], blocks[np.repeat(keep, counts)]


@dataclass(frozen=True)
class SharedWrite:
    """A row's write into block `index` of its table, which other rows hold too."""

    group: int
    row: int
    index: int


class Sharing:
    """Copy on write: forked rows share blocks until one of them writes into one and gets its own copy.

    forked: rows that may share blocks. sizes: (group, tokens per block) of each group that grows with tokens.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        tables: BlockTables,
        copies: BlockCopies,
        sizes: Sequence[tuple[int, int]],
    ) -> None:
        self.forked: set[int] = set()
        self._pools = pools
        self._tables = tables
        self._copies = copies
        self._sizes = sizes

    def forked_among(self, rows: Array, starts: Array) -> list[tuple[int, int]]:
        """The rows that may share blocks, each with its start."""
        if not self.forked:
            return []
        each = zip(rows.tolist(), starts.tolist(), strict=True)
        return [(row, start) for row, start in each if row in self.forked]

    def writes(self, rows: Array, starts: Array) -> tuple[SharedWrite, ...]:
        """The writes of the rows' next tokens, at starts, that need a copy first.

        A row that is leaving still holds its blocks: what it wrote may be cached when its last step retires. Everything
        that rows share ends before the next token of each of them, so only the block of the next token can be shared.
        The last holder to write into a block may keep it.
        """
        forked = self.forked_among(rows, starts)
        copies = []
        for group, size in self._sizes:
            holders: dict[int, int] = {}
            for row, start in forked:
                blocks, index = self._tables.row_blocks(group, row), start // size
                if index < len(blocks):
                    block = int(blocks[index])
                    left = holders.setdefault(block, int(self._pools[group].ref_count[block]))
                    if left > 1:
                        copies.append(SharedWrite(group, row, index))
                        holders[block] = left - 1
        return tuple(copies)

    def copy(self, write: SharedWrite) -> None:
        """Replaces a shared block by the row's own copy. A copy of a copy reads from the original."""
        shared = int(self._tables.row_blocks(write.group, write.row)[write.index])
        pool = self._pools[write.group]
        target = int(pool.allocate(1)[0])
        self._tables.replace(write.group, write.row, write.index, target)
        self._copies.add(write.group, self._copies.origin(write.group, shared), target)
        pool.release(int32([shared]))


class Windows:
    """Groups with a sliding window: blocks that no later token of a row attends to are given back."""

    def __init__(self, groups: Sequence[CacheGroup], tables: BlockTables, pools: Sequence[BlockPool]) -> None:
        self._groups, self._tables, self._pools = groups, tables, pools
        self._sizes = [(index, group.window, group.block_size) for index, group in enumerate(groups) if group.window]

    def sees(self, row: int, position: int) -> bool:
        """Whether a row still holds every block that a token at this position attends to."""
        return all(
            self._tables.starts[group][row] <= self._groups[group].first_seen(position) for group, _, _ in self._sizes
        )

    def behind(self, rows: Array, positions: Array) -> Array:
        """The rows that hold blocks to which no token from positions[row] on attends."""
        if not self._sizes:
            return rows[:0]
        passed = [
            _ends(window, size, rows, positions) > self._tables.starts[group][rows]
            for group, window, size in self._sizes
        ]
        return rows[np.logical_or.reduce(passed)]

    def free_behind(self, rows: Array, positions: Array) -> None:
        """Gives those blocks back. No step in flight may start before positions."""
        for group, window, size in self._sizes:
            ends = _ends(window, size, rows, positions)
            passed = ends > self._tables.starts[group][rows]
            for row, end in zip(rows[passed].tolist(), ends[passed].tolist(), strict=True):
                self._pools[group].release(self._tables.give_up(group, row, end))


def _ends(window: int, size: int, rows: Array, positions: Array) -> Array:
    """The first block that the next token of each row attends to."""
    ends: Array = np.maximum(positions[rows] - (window - 1), 0) // size
    return ends
