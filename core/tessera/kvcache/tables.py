"""Block tables of all rows by group, and what changed in them since the last step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array, int32
from tessera.step import BlockDelta

Entry = tuple[Array, Array, Array, Array]


class BlockTables:
    """blocks[group] [num_rows, max_blocks] int32 block numbers, of which those from starts[group] to counts[group]
    (both [num_rows] int32) are held; zeros (null) before and after them."""

    def __init__(self, num_rows: int, max_blocks: Sequence[int]) -> None:
        self.blocks = [np.zeros((num_rows, count), dtype=np.int32) for count in max_blocks]
        self.starts = [np.zeros(num_rows, dtype=np.int32) for _ in max_blocks]
        self.counts = [np.zeros(num_rows, dtype=np.int32) for _ in max_blocks]
        self._changes: list[list[Entry]] = [[] for _ in max_blocks]

    def of(self, group: int, row: int) -> Array:
        """The blocks of a row by place, null where it holds none any more (a view)."""
        return self.blocks[group][row, : self.counts[group][row]]

    def held(self, group: int, row: int) -> Array:
        """The blocks that a row holds (a view)."""
        return self.blocks[group][row, self.starts[group][row] : self.counts[group][row]]

    def begin(self, group: int, row: int, blocks: Array) -> None:
        """Gives an empty row its first blocks; nulls among them stand at the front."""
        self.append(group, int32([row]), int32([len(blocks)]), blocks)
        self.starts[group][row] = np.count_nonzero(blocks == 0)

    def give_up(self, group: int, row: int, end: int) -> Array:
        """The blocks that a row held before place `end`, null in their places from now on."""
        start = int(self.starts[group][row])
        blocks = self.blocks[group][row, start:end].copy()
        nulls = np.zeros(end - start, dtype=np.int32)
        self.blocks[group][row, start:end] = nulls
        self.starts[group][row] = end
        self._changes[group].append((int32([row]), int32([start]), int32([end - start]), nulls))
        return blocks

    def append(self, group: int, rows: Array, counts: Array, blocks: Array) -> None:
        """rows[i] gets counts[i] (at least 1) of blocks after those it has."""
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

    def clear(self, row: int) -> None:
        for blocks, starts, counts in zip(self.blocks, self.starts, self.counts, strict=True):
            blocks[row, : counts[row]] = 0
            starts[row] = counts[row] = 0

    def take_changes(self) -> list[BlockDelta]:
        """By group, what was appended, replaced and given up since the last call, in order."""
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
        """Takes back what take_changes() has not told of a row that nobody has seen."""
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
