"""What lies behind the window of every token to come is given back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array
from tessera.kvcache.pool import BlockPool
from tessera.kvcache.tables import BlockTables
from tessera.platform.runner import CacheGroup


class Windows:
    """Of the groups that have one."""

    def __init__(self, groups: Sequence[CacheGroup], tables: BlockTables, pools: Sequence[BlockPool]) -> None:
        self._groups, self._tables, self._pools = groups, tables, pools
        self._sizes = [(index, group.window, group.block_size) for index, group in enumerate(groups) if group.window]

    def sees(self, row: int, position: int) -> bool:
        """Whether a row still has every block that a token at this position sees."""
        return all(
            self._tables.starts[group][row] <= self._groups[group].first_seen(position) for group, _, _ in self._sizes
        )

    def behind(self, rows: Array, positions: Array) -> Array:
        """Those of rows that hold blocks which no token from positions[row] on sees."""
        if not self._sizes:
            return rows[:0]
        passed = [
            _ends(window, size, rows, positions) > self._tables.starts[group][rows]
            for group, window, size in self._sizes
        ]
        return rows[np.logical_or.reduce(passed)]

    def free_behind(self, rows: Array, positions: Array) -> None:
        """Gives these blocks back. No step in flight may start before."""
        for group, window, size in self._sizes:
            ends = _ends(window, size, rows, positions)
            passed = ends > self._tables.starts[group][rows]
            for row, end in zip(rows[passed].tolist(), ends[passed].tolist(), strict=True):
                self._pools[group].release(self._tables.give_up(group, row, end))


def _ends(window: int, size: int, rows: Array, positions: Array) -> Array:
    """The first block that the next token of each row sees."""
    ends: Array = np.maximum(positions[rows] - (window - 1), 0) // size
    return ends
