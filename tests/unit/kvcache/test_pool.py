"""No block is lost or used twice, whatever is allocated, shared, left and freed."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tessera.arrays import int32
from tessera.kvcache import BlockPool

BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """holders: what each of a few requests holds; leaving: which of them are going."""

    def __init__(self):
        super().__init__()
        self.reused: list[int] = []
        self.pool = BlockPool(BLOCKS, self.reused.extend)
        self.holders: list[np.ndarray] = []
        self.leaving: list[np.ndarray] = []
        self.copying: list[int] = []
        self.free = list(range(1, BLOCKS))

    @rule(count=st.integers(1, 4))
    def allocate(self, count):
        if count > self.pool.num_free:
            return
        before = len(self.reused)
        blocks = self.pool.allocate(count)
        assert blocks.dtype == np.int32
        assert blocks.tolist() == self.free[:count], "not those that were free longest"
        assert self.reused[before:] == blocks.tolist()
        self.free = self.free[count:]
        self.holders.append(blocks)

    @rule(data=st.data())
    def touch(self, data):
        """Blocks that another holds, or that are free and still known."""
        blocks = int32(data.draw(st.lists(st.integers(1, BLOCKS - 1), min_size=1, max_size=4, unique=True)))
        assert self.pool.count_free(blocks) == len(set(blocks.tolist()) & set(self.free))
        self.pool.touch(blocks)
        self.free = [block for block in self.free if block not in blocks]
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def leave(self, data):
        blocks = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.leave(blocks)
        self.leaving.append(blocks)

    @precondition(lambda self: self.leaving)
    @rule(soon=st.booleans())
    def free_one(self, soon):
        blocks = self.leaving.pop(0)
        before = self.pool.num_freed
        self.pool.free(blocks, soon=soon)
        back = [block for block in blocks.tolist() if not self.used(block)]
        self.free = back + self.free if soon else self.free + back
        assert self.pool.num_freed - before == len(back)

    def used(self, block):
        return block in self.copying or any(block in blocks for blocks in self.holders + self.leaving)

    @precondition(lambda self: self.holders and self.pool.num_free)
    @rule(data=st.data())
    def exchange(self, data):
        blocks = data.draw(st.sampled_from(self.holders))
        place = data.draw(st.integers(0, len(blocks) - 1))
        old = int(blocks[place])
        new = int(self.pool.allocate(1)[0])
        assert new == self.free.pop(0)
        self.pool.copy(old)
        self.pool.release(np.array([old]))
        blocks[place] = new
        self.copying.append(old)

    @rule(block=st.integers(1, BLOCKS - 1))
    def copy(self, block):
        """Of a block that may be free: its content is still there."""
        self.pool.copy(block)
        self.copying.append(block)
        if block in self.free:
            self.free.remove(block)

    @precondition(lambda self: self.copying)
    @rule()
    def copied(self):
        block = self.copying.pop(0)
        self.pool.copied(block)
        if not self.used(block):
            self.free.append(block)

    @invariant()
    def every_block_is_somewhere_once(self):
        leaving = Counter(block for blocks in self.leaving for block in blocks.tolist())
        held = Counter(block for blocks in self.holders for block in blocks.tolist()) + leaving
        copying = Counter(self.copying)
        self.pool.check(*(np.array([of[block] for block in range(BLOCKS)]) for of in (held, leaving, copying)))
        assert list(self.pool._free) == self.free
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_returning == sum(held[block] == leaving[block] for block in held | copying)


PoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
TestPool = PoolMachine.TestCase


@pytest.mark.parametrize("broken", ["lost", "held and free", "null held", "miscounted"])
def test_the_check_sees_what_is_wrong(broken):
    pool = BlockPool(4)
    held = pool.allocate(1)
    counts = np.bincount(held, minlength=4)
    nothing = np.zeros(4, dtype=int)
    pool.check(counts, nothing, nothing)
    if broken == "lost":
        pool.ref_count[held] = 0
        counts = nothing
    elif broken == "held and free":
        pool._free.add(held)
    elif broken == "null held":
        pool.ref_count[0] = 1
        counts = pool.ref_count.copy()
    else:
        counts = counts + counts
    with pytest.raises(AssertionError):
        pool.check(counts, nothing, nothing)
