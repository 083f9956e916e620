"""Assigns KV cache blocks to the rows of requests: look-up, allocation, forking, freeing and caching in all groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import lcm

import numpy as np

from tessera.arrays import Array, int32
from tessera.kvcache.copies import BlockCopies
from tessera.kvcache.pool import BlockPool
from tessera.kvcache.prefix_cache import HashChain, PrefixCache, PrefixHit
from tessera.kvcache.snapshots import Snapshot, StateSnapshots
from tessera.kvcache.tables import BlockTables, Sharing, Windows
from tessera.platform.runner import CacheGroup, CachePlan
from tessera.step import BlockCopy, BlockDelta

NO_LIMIT = np.iinfo(np.int32).max
LOOK_BACK = 256
"""Tokens before the end of a row for which a window is held too: another engine may go on from the border of a unit of
its own, and has whole units of the window."""
MOST_BORDERS = 4
"""Of units, at which a row's states are held: another engine's units may be longer."""

MakePrefixCache = Callable[[Sequence[CacheGroup], bytes | None], PrefixCache]
"""Makes the prefix cache of groups, with a salt or a random one."""


@dataclass(frozen=True, eq=False)
class Reservation:
    """Blocks that no row need hold, and that stay what they are until give_back()."""

    # By group, [blocks] int32, in the order of their tokens, null for those that no later token needs. Of a group of
    # states, for each unit the one behind its last token.
    blocks: tuple[Array, ...]
    # By group: of these, how many had been computed; the others come after them.
    num_computed: tuple[int, ...]

    @property
    def new_blocks(self) -> tuple[Array, ...]:
        """By group, those that have been computed by nobody yet."""
        return tuple(own[known:] for own, known in zip(self.blocks, self.num_computed, strict=True))

    @property
    def counts(self) -> list[int]:
        """By group, how many are held."""
        return [int(np.count_nonzero(own)) for own in self.blocks]


class KVCacheManager:
    """The blocks of every row, in every group of a plan.

    A row starts with open() or fork() and grows with try_allocate(). Blocks that fall behind a sliding window are given
    back through `windows`. A row ends with leave() and, once no step in flight uses it, free(). Groups of StateSpec
    give each open row the same number of blocks, the first of which holds its state, and never grow; if they have more
    blocks than rows need, `snapshots` makes prefix hits possible, and is None otherwise. Groups of CrossSpec give a row
    the blocks of its encoder when it starts, which forked rows share for good, since nothing is written to them later;
    there are no prefix hits beside them.

    covered [num_rows] int32: tokens the row's blocks have room for; 0 while the next block it writes may be shared.
    ahead: the most tokens of one row that the steps in flight may compute, so a group with a window never holds more
    than the window plus those.
    """

    def __init__(
        self,
        plan: CachePlan,
        *,
        prefix_caching: bool,
        ahead: int = NO_LIMIT,
        salt: bytes | None = None,
        make_prefix_cache: MakePrefixCache = PrefixCache,
    ) -> None:
        self._groups = plan.groups
        self._ahead = ahead
        self._max_model_len = plan.max_model_len
        self._growing = tuple(index for index, group in enumerate(plan.groups) if group.grows)
        self._crossing = tuple(index for index, group in enumerate(plan.groups) if group.kind == "cross")
        self._states = tuple(index for index, group in enumerate(plan.groups) if group.kind == "state")
        states = [plan.groups[group] for group in self._states]
        spare = [group.num_blocks - 1 > plan.num_rows * group.states for group in states]
        self.prefix_cache: PrefixCache | None = None
        if prefix_caching and plan.groups and all(spare) and not self._crossing:
            self.prefix_cache = make_prefix_cache(plan.groups, salt)
        self.pools = [BlockPool(group.num_blocks, self._forgetter(index)) for index, group in enumerate(plan.groups)]
        self.tables = BlockTables(plan.num_rows, [group.blocks_of(plan.max_model_len) for group in plan.groups])
        self.windows = Windows(plan.groups, self.tables, self.pools)
        self.covered = np.zeros(plan.num_rows, dtype=np.int32)
        sizes = [(group, plan.groups[group].block_size) for group in self._growing]
        self._copies = BlockCopies(self.pools)
        self._sharing = Sharing(self.pools, self.tables, self._copies, sizes)
        self._reservations: list[Reservation] = []
        self.snapshots: StateSnapshots | None = None
        if self.prefix_cache is not None and self._states:
            of_a_row = {group: plan.groups[group].states for group in self._states}
            self.snapshots = StateSnapshots(of_a_row, self.pools, self.tables, self._copies, self.prefix_cache)

    def _forgetter(self, group: int) -> Callable[[list[int]], None] | None:
        return None if self.prefix_cache is None else partial(self.prefix_cache.forget, group)

    # ---- capacity ----------------------------------------------------------------------------------------------------

    def has(self, blocks: Array, reserved: Array | int = 0) -> bool:
        """Whether each group has this many free blocks on top of the reserved ones. A group that needs none may be
        full."""
        asked = zip(self.pools, blocks.tolist(), (blocks + reserved).tolist(), strict=True)
        return all(not own or whole <= pool.num_free for pool, own, whole in asked)

    def share_of_blocks(self, share: float) -> Array:
        """[groups] int64: this fraction of the blocks of each group that grows."""
        return np.array(
            [int(share * (pool.num_blocks - 1)) if i in self._growing else 0 for i, pool in enumerate(self.pools)]
        )

    def spare_share(self, share: float) -> Array:
        """[groups] int64: this fraction of the blocks of each group that no open row must have."""
        needed = [each * len(self.covered) for each in self._blocks_of_rows]
        spare = (pool.num_blocks - 1 - own for pool, own in zip(self.pools, needed, strict=True))
        return np.array([int(share * count) for count in spare])

    @property
    def _blocks_of_rows(self) -> list[int]:
        """By group: blocks that each row has from its start to its end."""
        return [group.states if number in self._states else 0 for number, group in enumerate(self._groups)]

    @property
    def grows(self) -> Array:
        """[groups] int64: 1 for each group that grows, 0 for the others."""
        return np.array([int(group.grows) for group in self._groups])

    @property
    def num_returning(self) -> Array:
        """[groups] int64: blocks that become free once the steps in flight have retired."""
        return np.array([pool.num_returning for pool in self.pools])

    @property
    def num_freed(self) -> int:
        """Blocks freed since the start. While it does not change, there is no more room than before."""
        return sum(pool.num_freed for pool in self.pools)

    @property
    def usage(self) -> float:
        """Fraction of the blocks in use, 0 to 1, in the fullest group that is not one of states."""
        pools = [self.pools[group] for group in (*self._growing, *self._crossing)]
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
        """False with a StateSpec: a state holds only what follows the last token, so rows cannot share it."""
        return not self._states

    # ---- starting a row ----------------------------------------------------------------------------------------------

    def get_computed_blocks(self, chain: HashChain | None, tokens: Array, multiple: int = 1) -> PrefixHit:
        """The longest cached prefix of tokens whose length is a multiple of `multiple`, with at least one token left to
        compute."""
        no_room = self.snapshots is not None and not self.snapshots.has_room
        if self.prefix_cache is None or chain is None or no_room:
            return PrefixHit(0, tuple(int32() for _ in self._groups))
        step = lcm(chain.unit, multiple) // chain.unit
        return self.prefix_cache.find(chain, tokens, (len(tokens) - 1) // chain.unit, step)

    def blocks_to_start(self, hit: PrefixHit, num_tokens: int, sources: int = 0) -> Array:
        """[groups] int64: free blocks that a new row needs to hold num_tokens tokens, given the prefix hit, and the
        positions of its encoder."""
        blocks = np.zeros(len(self._groups), dtype=np.int64)
        for group in self._growing:
            spec, known = self._groups[group], hit.blocks[group]
            passed = spec.first_seen(hit.num_tokens)
            most = min(spec.blocks_of(num_tokens) - passed, spec.most_held(num_tokens, self._ahead))
            known = known[passed:]
            blocks[group] = most - len(known) + self.pools[group].count_free(known)
        for group in self._crossing:
            blocks[group] = -(-sources // self._groups[group].block_size)
        return blocks

    def blocks_to_fork(self) -> Array:
        """[groups] int64: the most blocks a forked row needs to write its first token."""
        blocks = np.zeros(len(self._groups), dtype=np.int64)
        blocks[list(self._growing)] = 1
        return blocks

    def open(self, row: int, hit: PrefixHit, sources: int = 0) -> None:
        """Gives an empty row the blocks of its cached prefix, and of its encoder's positions."""
        for group in self._growing:
            self._begin(group, row, hit.blocks[group])
        for group in self._crossing:
            if number := -(-sources // self._groups[group].block_size):
                self.tables.begin(group, row, self.pools[group].allocate(number))
        for group in self._states:
            pool, states = self.pools[group], hit.blocks[group]
            pool.touch(states)  # before the row gets a block, which might be this one
            own = pool.allocate(self._groups[group].states)
            self.tables.begin(group, row, own)
            for state in states.tolist():
                self._copies.add(group, state, int(own[0]))
            pool.release(states)
        if self.snapshots is not None:
            self.snapshots.begin(row, hit.num_tokens)
        self._cover(int32([row]))

    def fork(self, source: int, row: int, num_tokens: int) -> None:
        """Gives an empty row the blocks of the source row's first num_tokens tokens. The last block may be partly
        filled; the first row to write into it copies it. The source must still hold every block that the next token
        attends to."""
        for group in self._growing:
            spec = self._groups[group]
            shared = self.tables.row_blocks(group, source)[: spec.blocks_of(num_tokens)].copy()
            shared[: spec.first_seen(num_tokens)] = 0
            self._begin(group, row, shared)
        for group in self._crossing:
            self._begin(group, row, self.tables.row_blocks(group, source).copy())
        self._sharing.forked |= {source, row}
        self.covered[[source, row]] = 0

    def _begin(self, group: int, row: int, blocks: Array) -> None:
        if len(blocks):
            self.pools[group].touch(blocks[blocks > 0])
            self.tables.begin(group, row, blocks)

    def _cover(self, rows: Array) -> None:
        tokens = [self.tables.counts[group][rows] * self._groups[group].block_size for group in self._growing]
        self.covered[rows] = reduce(np.minimum, tokens) if tokens else NO_LIMIT

    # ---- growing a row -----------------------------------------------------------------------------------------------

    def try_allocate(self, rows: Array, starts: Array, ends: Array, reserved: Array | int = 0) -> Array | None:
        """Gives rows the blocks they need to write tokens starts[i] to ends[i].

        Returns None on success. Otherwise nothing has changed, and the result [groups] int64 is the number of blocks
        needed in each group. reserved: blocks of each group to leave free for others.
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
        """A mask of the rows that need blocks or copies before they can write up to ends."""
        needy: Array = ends > self.covered.take(rows)
        return needy

    def choose_states(self, rows: Array, places: Array) -> None:
        """From now on the state of row rows[i] is that in place places[i] of its blocks: the one behind the last draft
        that was accepted."""
        for group in self._states:
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                if place:
                    self.tables.swap(group, row, 0, place)

    def _settle(self, row: int, start: int) -> None:
        """From now on the row owns the block it writes into. If the block was cached, it is forgotten, because its
        content changes."""
        self._sharing.forked.remove(row)
        for group in self._growing:
            index = start // self._groups[group].block_size
            blocks = self.tables.row_blocks(group, row)
            if self.prefix_cache is not None and index < len(blocks):
                self.prefix_cache.forget(group, (int(blocks[index]),))

    def take_changes(self) -> tuple[list[BlockDelta], list[BlockCopy]]:
        """Table changes since the last call, and the copies to make before anything is written. Call free_copied() for
        the copies once their step has retired."""
        return self.tables.take_changes(), self._copies.take()

    def free_copied(self, copies: Sequence[BlockCopy]) -> None:
        """Releases the sources of these copies; their step has retired."""
        self._copies.free(copies)

    # ---- ending a row ------------------------------------------------------------------------------------------------

    def leave(self, row: int) -> None:
        """Marks the row's blocks as leaving: free() follows once the steps in flight have retired."""
        for group, pool in enumerate(self.pools):
            pool.leave(self.tables.live_blocks(group, row))

    def free(self, row: int) -> None:
        """Frees the blocks of a row that left: of tokens last block first, so that prefixes stay cached longer, but of
        an encoder in order, so that another row's follow one another in memory too."""
        for group, pool in enumerate(self.pools):
            blocks = self.tables.live_blocks(group, row)
            self._copies.withdraw(group, blocks)
            freed = blocks.copy() if group in self._crossing else blocks[::-1].copy()
            pool.free(freed, soon=group in self._states)
        self.tables.clear(row)
        self.covered[row] = 0
        self._sharing.forked.discard(row)

    # ---- blocks that no row need hold --------------------------------------------------------------------------------

    def hold_row(self, row: int, num_tokens: int, chain: HashChain | None, tokens: Array) -> Reservation:
        """Holds the blocks of a row's first num_tokens tokens, whatever becomes of the row: with a window also those
        just behind it, and of states those at the last borders, as far as the prefix cache has them. chain, tokens: of
        the row; None without a prefix cache."""
        blocks = [int32() for _ in self._groups]
        for group in self._growing:
            blocks[group] = self._blocks_behind(group, row, num_tokens, chain, tokens)
            self.pools[group].touch(blocks[group][blocks[group] > 0])
        if self._states and chain is not None:
            for group, states in zip(self._states, self._hold_states(num_tokens, chain, tokens), strict=True):
                blocks[group] = states
        reservation = Reservation(tuple(blocks), tuple(map(len, blocks)))
        self._reservations.append(reservation)
        return reservation

    def _blocks_behind(self, group: int, row: int, num_tokens: int, chain: HashChain | None, tokens: Array) -> Array:
        """Blocks of a row, and of LOOK_BACK tokens before those that its window has passed."""
        spec = self._groups[group]
        blocks = self.tables.row_blocks(group, row)[: spec.blocks_of(num_tokens)].copy()
        seen = spec.first_seen(max(num_tokens - LOOK_BACK, 0))
        blocks[:seen] = 0
        if self.prefix_cache is None or chain is None:
            return blocks
        for place in range(min(int(self.tables.starts[group][row]), len(blocks)) - 1, seen - 1, -1):
            unit, within = divmod(place, chain.unit // spec.block_size)
            blocks[place] = self.prefix_cache.block(group, chain.link(unit, tokens), within)
            if not blocks[place]:
                break
        return blocks

    def _hold_states(self, num_tokens: int, chain: HashChain, tokens: Array) -> list[Array]:
        """Holds copies of states at the last MOST_BORDERS borders of units, as far as rows can spare them. By group of
        states, one block for each unit of num_tokens, or null."""
        held = [np.zeros(num_tokens // chain.unit, np.int32) for _ in self._states]
        for place in reversed(range(len(held[0]))):
            if self.prefix_cache is None or self.snapshots is None or np.count_nonzero(held[0]) == MOST_BORDERS:
                break
            states = self.prefix_cache.states(chain.link(place, tokens))
            if len(states) == len(self._states) and self.snapshots.has_room:
                for own, group in zip(held, self._states, strict=True):
                    own[place] = states[group]
                    self.pools[group].touch(int32([states[group]]))
        return held

    def hold_new(self, hit: PrefixHit, num_tokens: int) -> Reservation | None:
        """Holds the blocks of a cached prefix and new ones for the tokens behind it up to num_tokens, a multiple of the
        unit, as far as later tokens need them: whole units with the window of the next token, and of states those
        behind the last token. None, and nothing has changed, if too few are free."""
        known = [int32() if group in self._states else own for group, own in enumerate(hit.blocks)]
        fresh = [self._needed_behind(group, hit.num_tokens, num_tokens) for group in range(len(self._groups))]
        needed = [
            int(own.sum()) + pool.count_free(held[held > 0])
            for pool, held, own in zip(self.pools, known, fresh, strict=True)
        ]
        unopened = [
            each * np.count_nonzero(self.tables.counts[group] == 0) for group, each in enumerate(self._blocks_of_rows)
        ]
        if not self.has(np.array(needed), np.array(unopened)):
            return None
        for pool, held in zip(self.pools, known, strict=True):
            pool.touch(held[held > 0])
        blocks = []
        for pool, held, own in zip(self.pools, known, fresh, strict=True):
            new = own.astype(np.int32)
            new[own] = pool.allocate(int(own.sum())) if own.any() else 0
            blocks.append(np.concatenate([held, new]))
        reservation = Reservation(tuple(blocks), tuple(map(len, known)))
        self._reservations.append(reservation)
        return reservation

    def _needed_behind(self, group: int, first: int, last: int) -> Array:
        """[blocks] bool: of the blocks of tokens first to last (exclusive), multiples of the unit, those that the next
        token needs, in whole units."""
        assert self.prefix_cache is not None
        spec, unit = self._groups[group], self.prefix_cache.unit
        size = spec.block_size or unit
        seen = last - unit if group in self._states else spec.first_seen(last) * size // unit * unit
        needed: Array = np.arange(first, last, size) >= seen
        return needed

    def give_back(self, reservation: Reservation) -> None:
        """Last block first, so that prefixes stay cached longer."""
        self._reservations.remove(reservation)
        for pool, own in zip(self.pools, reservation.blocks, strict=True):
            pool.release(own[own > 0][::-1].copy())

    @property
    def has_reservations(self) -> bool:
        """Whether blocks are held that no row need hold."""
        return bool(self._reservations)

    # ---- prefix caching ----------------------------------------------------------------------------------------------

    def cache_blocks(self, row: int, chain: HashChain, tokens: Array, first: int, last: int) -> None:
        """Caches units first to last (exclusive) of a row's tokens, which are computed and not written again."""
        assert self.prefix_cache is not None
        held = {}
        for group in self._growing:
            per_unit = chain.unit // self._groups[group].block_size
            held[group] = self.tables.row_blocks(group, row)[first * per_unit : last * per_unit].tolist()
        self.prefix_cache.register(chain, tokens, first, last, held)

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(
        self,
        rows: Sequence[int],
        leaving_rows: Sequence[int],
        copied: Sequence[BlockCopy],
        snapshots: Sequence[Snapshot] = (),
    ) -> None:
        """Asserts that the only holders of blocks are these rows (leaving_rows are among them), the sources of copies
        in flight, snapshots in flight, and reservations."""
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
            taken = int32([snapshot.blocks[group] for snapshot in snapshots if group in snapshot.blocks])
            lent = [one.blocks[group][one.blocks[group] > 0] for one in self._reservations]
            holders = _counted([blocks[held], taken, *lent], pool.num_blocks)
            leavers = _counted([self.tables.live_blocks(group, row) for row in leaving_rows], pool.num_blocks)
            copies = _counted([copy.sources for copy in copied if copy.group == group], pool.num_blocks)
            pool.check(holders, leavers, copies)
        if self.prefix_cache is not None:
            self.prefix_cache.check()


def _counted(blocks: Sequence[Array], num_blocks: int) -> Array:
    return np.bincount(np.concatenate([int32(), *blocks]), minlength=num_blocks)
