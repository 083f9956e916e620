"""Copy on write: forked rows hold blocks together until one of them writes, which gets a copy of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.arrays import Array, int32
from tessera.kvcache.pool import BlockPool
from tessera.kvcache.tables import BlockTables
from tessera.step import BlockCopy


@dataclass(frozen=True)
class SharedWrite:
    """A row would write into block `index` of its table, which others hold too."""

    group: int
    row: int
    index: int


class Sharing:
    """forked: rows that may hold blocks with others. sizes: the groups that grow, with the tokens of a block."""

    def __init__(self, pools: Sequence[BlockPool], tables: BlockTables, sizes: Sequence[tuple[int, int]]) -> None:
        self.forked: set[int] = set()
        self._pools = pools
        self._tables = tables
        self._sizes = sizes
        self._copies: list[list[tuple[int, int]]] = [[] for _ in pools]

    def forked_among(self, rows: Array, starts: Array) -> list[tuple[int, int]]:
        """Those of rows that may hold blocks with others, each with its start."""
        if not self.forked:
            return []
        each = zip(rows.tolist(), starts.tolist(), strict=True)
        return [(row, start) for row, start in each if row in self.forked]

    def writes(self, rows: Array, starts: Array) -> tuple[SharedWrite, ...]:
        """Those of the rows' next tokens, at starts, that need a copy first. Who is leaving still holds its blocks:
        what it wrote may become known when its last step retires. All that sharers have in common ends before what
        each of them writes next, so only the block of the next token can be shared. The last of its holders to write
        into it may keep it."""
        forked = self.forked_among(rows, starts)
        copies = []
        for group, size in self._sizes:
            holders: dict[int, int] = {}
            for row, start in forked:
                blocks, index = self._tables.of(group, row), start // size
                if index < len(blocks):
                    block = int(blocks[index])
                    left = holders.setdefault(block, int(self._pools[group].ref_count[block]))
                    if left > 1:
                        copies.append(SharedWrite(group, row, index))
                        holders[block] = left - 1
        return tuple(copies)

    def copy(self, write: SharedWrite) -> None:
        """The row's own copy in the place of a shared block, whose content is needed until the step that copies it has
        retired. Copies of a step are made all at once, so a copy of a copy is made of what that one is made of."""
        shared = int(self._tables.of(write.group, write.row)[write.index])
        copies = self._copies[write.group]
        source = next((source for source, target in copies if target == shared), shared)
        target = self._pools[write.group].exchange(shared, source)
        self._tables.replace(write.group, write.row, write.index, target)
        copies.append((source, target))

    def take_copies(self) -> list[BlockCopy]:
        """Copies to make before anything is written. free_copied() must follow."""
        copies = []
        for group, pairs in enumerate(self._copies):
            if pairs:
                sources, targets = zip(*pairs, strict=True)
                copies.append(BlockCopy(group, int32(sources), int32(targets)))
                pairs.clear()
        return copies

    def free_copied(self, copies: Sequence[BlockCopy]) -> None:
        """The step that made these copies has retired."""
        for copy in copies:
            for source in copy.sources.tolist():
                self._pools[copy.group].copied(source)
