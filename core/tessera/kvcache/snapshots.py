"""Copies of rows' states at the borders of units, by which a request may start from a prefix although a state holds
only what follows its last token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array
from tessera.kvcache.copies import BlockCopies
from tessera.kvcache.pool import BlockPool
from tessera.kvcache.prefix_cache import HashChain, PrefixCache
from tessera.kvcache.tables import BlockTables


@dataclass(frozen=True)
class Snapshot:
    """The copies of a row's states that one step makes before it computes anything."""

    row: int
    # Tokens that the states hold, a multiple of the unit.
    num_tokens: int
    # By group of states, the block that it is copied into.
    blocks: Mapping[int, int]
    # Whether some of these tokens are the row's answer.
    generated: bool


class StateSnapshots:
    """Blocks of the groups of states that no row computes into.

    A row that is about to go on from the border of a unit has its states copied first. When that step has retired, the
    copies are in the prefix cache and free, so the one that was longest unused is the first to be overwritten. While a
    row generates, each of its copies takes the place of the one before: only the last is likely to be asked for, by the
    next turn of a chat.

    groups: those of states, with the blocks that each row has. Every group must keep these free for each row that is
    not open; copies have what is left.
    """

    def __init__(
        self,
        groups: Mapping[int, int],
        pools: Sequence[BlockPool],
        tables: BlockTables,
        copies: BlockCopies,
        cache: PrefixCache,
    ) -> None:
        self._groups, self._pools, self._tables, self._copies, self._cache = groups, pools, tables, copies, cache
        num_rows = len(tables.counts[next(iter(groups))])
        # [rows] int32: tokens up to which no further copy of the row is made, as there is one.
        self._done = np.zeros(num_rows, dtype=np.int32)
        # By row: the newest copy with generated tokens that is in the prefix cache, as its link and blocks.
        self._newest: list[tuple[bytes, Mapping[int, int]] | None] = [None] * num_rows

    @property
    def unit(self) -> int:
        """Tokens between the borders at which states can be copied."""
        return self._cache.unit

    @property
    def has_room(self) -> bool:
        """Whether a block that no row needs is free in every group."""
        return all(
            self._pools[group].num_free > each * np.count_nonzero(self._tables.counts[group] == 0)
            for group, each in self._groups.items()
        )

    def begin(self, row: int, num_tokens: int) -> None:
        """A row starts from a prefix of this many tokens."""
        self._done[row] = num_tokens
        self._newest[row] = None

    def take(self, rows: Array, starts: Array, num_prompt_tokens: Array) -> list[Snapshot]:
        """Copies the states of the rows whose next token, at starts[i], is the first of a unit, as far as there is
        room. num_prompt_tokens [rows]: of each of them."""
        at_border = (starts % self._cache.unit == 0) & (starts > self._done[rows])
        taken = []
        for place in np.flatnonzero(at_border).tolist():
            if not self.has_room:
                break
            row, start = int(rows[place]), int(starts[place])
            blocks = self._blocks(row)
            for group, block in blocks.items():
                self._copies.add(group, int(self._tables.row_blocks(group, row)[0]), block)
            self._done[row] = start
            taken.append(Snapshot(row, start, blocks, generated=bool(start > num_prompt_tokens[place])))
        return taken

    def _blocks(self, row: int) -> Mapping[int, int]:
        """A block of each group, with one holder: those of the row's newest copy, if it is there and nothing else uses
        it."""
        newest = self._newest[row]
        if newest is not None:
            link, blocks = newest
            if self._cache.states(link) == blocks and all(self._is_free(*each) for each in blocks.items()):
                for group, block in blocks.items():
                    self._cache.forget(group, (block,))
                    self._pools[group].touch(np.array([block]))
                return blocks
        return {group: int(self._pools[group].allocate(1)[0]) for group in self._groups}

    def _is_free(self, group: int, block: int) -> bool:
        return self._pools[group].count_free(np.array([block])) > 0

    def settle(self, snapshot: Snapshot, chain: HashChain | None, tokens: Array) -> None:
        """The step that made these copies has retired. chain, tokens: of the row; None if it did not come to compute
        these tokens."""
        if chain is not None:
            last = snapshot.num_tokens // chain.unit
            blocks = {group: [block] for group, block in snapshot.blocks.items()}
            self._cache.register(chain, tokens, last - 1, last, blocks)
            if snapshot.generated:
                self._newest[snapshot.row] = chain.link(last - 1, tokens), snapshot.blocks
        for group, block in snapshot.blocks.items():
            self._pools[group].release(np.array([block]))
