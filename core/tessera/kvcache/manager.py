"""Rows of requests and the blocks they hold: find, allocate, fork, free and remember, in all cache groups at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import lcm

import numpy as np

from tessera.arrays import Array, int32
from tessera.kvcache.pool import BlockPool
from tessera.kvcache.prefix_cache import HashChain, PrefixCache, PrefixHit
from tessera.kvcache.tables import BlockTables, Sharing, Windows
from tessera.platform.runner import CachePlan
from tessera.step import BlockCopy, BlockDelta

NO_LIMIT = np.iinfo(np.int32).max


class KVCacheManager:
    """The blocks of every row, in every group of a plan.

    A row begins by open() or fork(), grows by try_allocate(), gives up blocks behind its windows (`windows`), and goes
    by leave() and, once no step in flight uses it, free(). covered [num_rows] int32: tokens that its blocks have
    room for, 0 while it may share the block that it writes next. Groups of StateSpec give one block to each open row
    and never grow. ahead: tokens of a row that steps in flight compute at most, so that a group with a window never
    holds more than they and the window take.
    """

    def __init__(
        self, plan: CachePlan, *, prefix_caching: bool, ahead: int = NO_LIMIT, salt: bytes | None = None
    ) -> None:
        self._groups = plan.groups
        self._ahead = ahead
        self._max_model_len = plan.max_model_len
        self._growing = tuple(index for index, group in enumerate(plan.groups) if group.kind != "state")
        self._states = tuple(index for index, group in enumerate(plan.groups) if group.kind == "state")
        self.prefix_cache: PrefixCache | None = None
        if prefix_caching and self._growing and not self._states:
            self.prefix_cache = PrefixCache(plan.groups, salt)
        self.pools = [BlockPool(group.num_blocks, self._forgetter(index)) for index, group in enumerate(plan.groups)]
        self.tables = BlockTables(plan.num_rows, [group.blocks_of(plan.max_model_len) for group in plan.groups])
        self.windows = Windows(plan.groups, self.tables, self.pools)
        self.covered = np.zeros(plan.num_rows, dtype=np.int32)
        sizes = [(group, plan.groups[group].block_size) for group in self._growing]
        self._sharing = Sharing(self.pools, self.tables, sizes)

    def _forgetter(self, group: int) -> Callable[[list[int]], None] | None:
        return None if self.prefix_cache is None else partial(self.prefix_cache.forget, group)

    # ---- how much there is -------------------------------------------------------------------------------------------

    def has(self, blocks: Array, reserved: Array | int = 0) -> bool:
        """Whether so many blocks of each group are free beside the reserved ones. A group of which none are needed may
        be full."""
        asked = zip(self.pools, blocks.tolist(), (blocks + reserved).tolist(), strict=True)
        return all(not own or whole <= pool.num_free for pool, own, whole in asked)

    def share_of_blocks(self, share: float) -> Array:
        """[groups] int64: so much of the blocks of each growing group."""
        return np.array(
            [int(share * (pool.num_blocks - 1)) if i in self._growing else 0 for i, pool in enumerate(self.pools)]
        )

    @property
    def num_returning(self) -> Array:
        """[groups] int64: blocks that are free as soon as the steps in flight have retired."""
        return np.array([pool.num_returning for pool in self.pools])

    @property
    def num_freed(self) -> int:
        """Blocks given back since the start; it stands still as long as there is no more room than before."""
        return sum(pool.num_freed for pool in self.pools)

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1, in the group that grows with tokens and is fullest."""
        pools = [self.pools[group] for group in self._growing]
        return max((1.0 - pool.num_free / (pool.num_blocks - 1) for pool in pools), default=0.0)

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest request that fits alone."""
        return min((self._fit_alone(group) for group in self._growing), default=NO_LIMIT)

    def _fit_alone(self, group: int) -> int:
        spec = self._groups[group]
        blocks = spec.num_blocks - 1
        whole = blocks >= spec.most_held(self._max_model_len, self._ahead)
        return NO_LIMIT if whole and spec.window is not None else blocks * spec.block_size

    @property
    def can_fork(self) -> bool:
        """A StateSpec cannot be shared: it is what it is after the last token."""
        return not self._states

    # ---- a row begins ------------------------------------------------------------------------------------------------

    def get_computed_blocks(self, chain: HashChain | None, tokens: Array, multiple: int = 1) -> PrefixHit:
        """The longest cached prefix of tokens that leaves at least one to compute and is a multiple of `multiple`."""
        if self.prefix_cache is None or chain is None:
            return PrefixHit(0, tuple(int32() for _ in self._groups))
        step = lcm(chain.unit, multiple) // chain.unit
        return self.prefix_cache.find(chain, tokens, (len(tokens) - 1) // chain.unit, step)

    def blocks_to_start(self, hit: PrefixHit, num_tokens: int) -> Array:
        """[groups] int64: free blocks that a new row takes of each growing group until it has num_tokens tokens, where
        those of hit are known."""
        blocks = np.zeros(len(self._groups), dtype=np.int64)
        for group in self._growing:
            spec, known = self._groups[group], hit.blocks[group]
            passed = spec.first_seen(hit.num_tokens)
            most = min(spec.blocks_of(num_tokens) - passed, spec.most_held(num_tokens, self._ahead))
            known = known[passed:]
            blocks[group] = most - len(known) + self.pools[group].count_free(known)
        return blocks

    def blocks_to_fork(self) -> Array:
        """[groups] int64: at most, until a forked row has written its first token."""
        blocks = np.zeros(len(self._groups), dtype=np.int64)
        blocks[list(self._growing)] = 1
        return blocks

    def open(self, row: int, hit: PrefixHit) -> None:
        """Gives an empty row the blocks of its prefix."""
        for group in self._growing:
            self._begin(group, row, hit.blocks[group])
        self._open(row)

    def fork(self, source: int, row: int, num_tokens: int) -> None:
        """Gives an empty row the blocks of another's first num_tokens tokens, the last of them perhaps only in part;
        whoever writes into it first copies it. The source must still see what the next token will."""
        for group in self._growing:
            spec = self._groups[group]
            shared = self.tables.of(group, source)[: spec.blocks_of(num_tokens)].copy()
            shared[: spec.first_seen(num_tokens)] = 0
            self._begin(group, row, shared)
        self._open(row)
        self._sharing.forked |= {source, row}
        self.covered[[source, row]] = 0

    def _begin(self, group: int, row: int, blocks: Array) -> None:
        if len(blocks):
            self.pools[group].touch(blocks[blocks > 0])
            self.tables.begin(group, row, blocks)

    def _open(self, row: int) -> None:
        for group in self._states:
            self.tables.begin(group, row, self.pools[group].allocate(1))
        self._cover(int32([row]))

    def _cover(self, rows: Array) -> None:
        tokens = [self.tables.counts[group][rows] * self._groups[group].block_size for group in self._growing]
        self.covered[rows] = reduce(np.minimum, tokens) if tokens else NO_LIMIT

    # ---- a row grows -------------------------------------------------------------------------------------------------

    def try_allocate(self, rows: Array, starts: Array, ends: Array, reserved: Array | int = 0) -> Array | None:
        """Gives rows the blocks they need to write tokens starts[i] to ends[i].

        None: they have them. Otherwise nothing was changed, and the result is what they need together: blocks of each
        group [groups] int64. reserved: blocks of each group that stay free for others.
        """
        needy = self.needy(rows, ends).nonzero()[0]
        if not len(needy):
            return None
        rows, starts, ends = rows[needy], starts[needy], ends[needy]
        copies = self._sharing.writes(rows, starts)
        needed = np.zeros(len(self._groups), dtype=np.int64)
        growth = []
        for group in self._growing:
            size = self._groups[group].block_size
            more = (ends + (size - 1)) // size - self.tables.counts[group][rows]
            grows = more > 0
            counts = more[grows]
            growth.append((group, rows[grows], counts))
            needed[group] = counts.sum()
        for copy in copies:
            needed[copy.group] += 1
        if not self.has(needed, reserved):
            return needed
        for copy in copies:
            self._sharing.copy(copy)
        for row, start in self._sharing.forked_among(rows, starts):
            self._settle(row, start)
        for group, growing, counts in growth:
            if len(growing):
                self.tables.append(group, growing, counts, self.pools[group].allocate(int(counts.sum())))
        self._cover(rows)
        return None

    def needy(self, rows: Array, ends: Array) -> Array:
        """Which rows need something before they can write up to ends, as a mask."""
        needy: Array = ends > self.covered.take(rows)
        return needy

    def _settle(self, row: int, start: int) -> None:
        """What the row writes into is its own from now on; a block that was shared until now stops being what it was
        known for."""
        self._sharing.forked.remove(row)
        for group in self._growing:
            index = start // self._groups[group].block_size
            blocks = self.tables.of(group, row)
            if self.prefix_cache is not None and index < len(blocks):
                self.prefix_cache.forget(group, (int(blocks[index]),))

    def take_changes(self) -> tuple[list[BlockDelta], list[BlockCopy]]:
        """What changed in the tables since the last call, and copies to make before anything is written. free_copied()
        must follow for the copies."""
        return self.tables.take_changes(), self._sharing.take_copies()

    def free_copied(self, copies: Sequence[BlockCopy]) -> None:
        """The step that made these copies has retired."""
        self._sharing.free_copied(copies)

    # ---- a row goes --------------------------------------------------------------------------------------------------

    def leave(self, row: int) -> None:
        """The row's blocks will be freed once the steps in flight have retired."""
        for group, pool in enumerate(self.pools):
            pool.leave(self.tables.held(group, row))

    def free(self, row: int) -> None:
        """Gives back the blocks of a row that left, the last first, so that beginnings live longer."""
        for group, pool in enumerate(self.pools):
            pool.free(self.tables.held(group, row)[::-1].copy())
        self.tables.clear(row)
        self.covered[row] = 0
        self._sharing.forked.discard(row)

    # ---- what blocks are known for -----------------------------------------------------------------------------------

    def cache_blocks(self, row: int, chain: HashChain, tokens: Array, first: int, last: int) -> None:
        """Units first to last (exclusive) of a row's tokens have been computed and will not be written again."""
        assert self.prefix_cache is not None
        held = []
        for group in self._growing:
            per_unit = chain.unit // self._groups[group].block_size
            held.append(self.tables.of(group, row)[first * per_unit : last * per_unit].tolist())
        self.prefix_cache.register(chain.links(first, last, tokens), held)

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(self, rows: Sequence[int], leaving_rows: Sequence[int], copied: Sequence[BlockCopy]) -> None:
        """Asserts that blocks are held by these rows, by leaving_rows among them and by the sources of copies in
        flight, and by nothing else."""
        unused = np.ones(len(self.covered), dtype=bool)
        unused[list(rows)] = False
        assert not self.covered[unused].any(), "a row that is not in use has room"
        assert self._sharing.forked <= set(rows), "a row that is not in use shares blocks"
        for group, pool in enumerate(self.pools):
            blocks, starts, counts = self.tables.blocks[group], self.tables.starts[group], self.tables.counts[group]
            assert not starts[unused].any(), "a row that is not in use has a window"
            assert not counts[unused].any(), "a row that is not in use holds blocks"
            places = np.arange(blocks.shape[1])
            held = (places >= starts[:, None]) & (places < counts[:, None])
            assert not blocks[~held].any(), "a table goes on beyond what its row holds"
            assert blocks[held].all(), "a table holds the null block"
            holders = _counted([blocks[held]], pool.num_blocks)
            leavers = _counted([self.tables.held(group, row) for row in leaving_rows], pool.num_blocks)
            copies = _counted([copy.sources for copy in copied if copy.group == group], pool.num_blocks)
            pool.check(holders, leavers, copies)
        if self.prefix_cache is not None:
            self.prefix_cache.check()


def _counted(blocks: Sequence[Array], num_blocks: int) -> Array:
    return np.bincount(np.concatenate([int32(), *blocks]), minlength=num_blocks)
