"""What rows have computed becomes known to the prefix cache: prompts at once, answers when their blocks are given up,
so that a step in which all rows decode hashes nothing."""

from __future__ import annotations

from tessera.arrays import Array
from tessera.kvcache.manager import KVCacheManager
from tessera.scheduler.rows import Rows


class PrefixPublisher:
    """Does nothing where there is no prefix cache."""

    def __init__(self, rows: Rows, cache: KVCacheManager) -> None:
        self._rows = rows
        self._cache = cache

    def tell(self, rows: Array) -> None:
        """Whatever units of these rows are full, and in the cache for sure, can be found from here on."""
        if self._cache.prefix_cache is None or not len(rows):
            return
        state, unit = self._rows, self._cache.prefix_cache.unit
        for row in rows.tolist():
            first, last = int(state.num_cached[row]) // unit, int(state.num_retired[row]) // unit
            if first < last:
                state.num_cached[row] = last * unit
                self._cache.cache_blocks(row, state.chain(row), state.tokens[row], first, last)

    def free_behind(self) -> None:
        """Blocks behind their windows go, when it was told what they hold."""
        passed = self._cache.windows.behind(self._rows.running, self._rows.num_retired)
        if len(passed):
            self.tell(passed)
            self._cache.windows.free_behind(passed, self._rows.num_retired)
