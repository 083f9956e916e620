"""The blocks of one cache group: who is free, how many hold each, and which to reuse next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from tessera.arrays import Array


class BlockPool:
    """Blocks 1 to num_blocks - 1; block 0 is null and never given out.

    ref_count [num_blocks] int32: holders of each block. leaving [num_blocks] int32: those of them that keep it only
    until a step in flight has retired. Free blocks are reused the longest free first, and keep their contents until
    then; reused(block) is called when they lose it.
    """

    def __init__(self, num_blocks: int, reused: Callable[[int], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self.ref_count = np.zeros(num_blocks, dtype=np.int32)
        self.leaving = np.zeros(num_blocks, dtype=np.int32)
        self.num_freed = 0
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._reused = reused

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_returning(self) -> int:
        """Blocks that only holders that are leaving hold."""
        return int(np.count_nonzero((self.ref_count > 0) & (self.ref_count == self.leaving)))

    def num_staying(self, block: int) -> int:
        """Holders that will still want it after the steps in flight."""
        return int(self.ref_count[block]) - int(self.leaving[block])

    def allocate(self, count: int) -> Array:
        """[count] int32 blocks with one holder each; there must be as many free."""
        take = self._free.popitem
        blocks = [take(last=False)[0] for _ in range(count)]
        if self._reused is not None:
            for block in blocks:
                self._reused(block)
        taken = np.array(blocks, dtype=np.int32)
        self.ref_count[taken] = 1
        return taken

    def count_unheld(self, blocks: Array) -> int:
        """How many of these are free, so that holding them takes from the free ones."""
        return int(np.count_nonzero(self.ref_count[blocks] == 0))

    def touch(self, blocks: Array) -> None:
        """One more holder of each of these distinct blocks, which may be free ones."""
        for block in blocks[self.ref_count[blocks] == 0].tolist():
            del self._free[block]
        self.ref_count[blocks] += 1

    def leave(self, blocks: Array) -> None:
        """A holder of these distinct blocks is going: free() will follow once no step in flight uses them."""
        self.leaving[blocks] += 1

    def free(self, blocks: Array) -> None:
        """A holder of these distinct blocks that left is gone. What nobody holds is free, to be reused in this
        order."""
        self.leaving[blocks] -= 1
        self.ref_count[blocks] -= 1
        unheld = blocks[self.ref_count[blocks] == 0].tolist()
        self._free.update(dict.fromkeys(unheld))
        self.num_freed += len(unheld)

    def check(self, holders: Array, leavers: Array) -> None:
        """Asserts that each block is exactly one of null, free and held, and that holders and leavers [num_blocks] are
        all that there are."""
        assert np.array_equal(self.ref_count, holders), "a block's reference count is not its number of holders"
        assert np.array_equal(self.leaving, leavers), (
            "a block is left by a holder that is not going, or not left by one that is"
        )
        assert 0 not in self._free, "the null block is free"
        assert self.ref_count[0] == 0, "the null block is held"
        free = np.zeros(self.num_blocks, dtype=bool)
        free[list(self._free)] = True
        assert np.array_equal(free[1:], self.ref_count[1:] == 0), "a block is lost, or free and held at once"
