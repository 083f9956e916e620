"""Tables, copies and prefixes of rows that open, fork, grow, are left and freed in any order, beside a model of what
each block holds."""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tessera.arrays import int32
from tessera.kvcache import KVCacheManager
from tessera.platform import CacheGroup, CachePlan

ROWS, MAX_LEN = 6, 40
PAGED = CacheGroup((0,), "paged", 4, 1, 24)
WINDOW = CacheGroup((1,), "window", 6, 1, 18, 8)
NARROW = CacheGroup((3,), "window", 4, 1, 20, 3)
CROSS = CacheGroup((4,), "cross", 4, 1, 7, length=10)
STATE = CacheGroup((2,), "state", 0, 1, ROWS + 1)


def manager(*groups, caching=True, **options):
    return KVCacheManager(CachePlan(groups or (PAGED,), ROWS, MAX_LEN), prefix_caching=caching, **options)


class ManagerMachine(RuleBasedStateMachine):
    """Every step retires at once or lags one behind. contents[group][block]: the token of each of its slots."""

    def __init__(self):
        super().__init__()
        self.tokens: dict[int, np.ndarray] = {}
        self.chains: dict = {}
        self.written: dict[int, int] = {}
        self.cached: dict[int, int] = {}
        self.left: deque[int] = deque()
        self.copied: deque = deque()

    @initialize(
        groups=st.sampled_from(
            [(PAGED,), (PAGED, WINDOW), (PAGED, STATE), (WINDOW,), (NARROW,), (PAGED, WINDOW, NARROW)]
        ),
        caching=st.booleans(),
    )
    def begin(self, groups, caching):
        self.groups = groups
        self.cache = manager(*groups, caching=caching)
        self.contents = [np.full((group.num_blocks, max(group.block_size, 1)), -1) for group in groups]

    def free_row(self):
        return next((row for row in range(ROWS) if row not in self.tokens and row not in self.left), None)

    @rule(length=st.integers(1, MAX_LEN), kind=st.integers(0, 2))
    def open(self, length, kind):
        row = self.free_row()
        if row is None:
            return
        tokens = int32([(token + kind) % 7 for token in range(length)])
        prefix_cache = self.cache.prefix_cache
        chain = None if prefix_cache is None else prefix_cache.chain()
        hit = self.cache.get_computed_blocks(chain, tokens)
        assert hit.num_tokens < length
        free = [pool.num_free for pool in self.cache.pools]
        needed = self.cache.blocks_to_start(hit, length)
        self.cache.open(row, hit)
        self.tokens[row], self.chains[row] = tokens, chain
        self.written[row] = self.cached[row] = hit.num_tokens
        more = needed_by(self.cache, [row], [hit.num_tokens], [length])
        for group, spec in enumerate(self.groups):
            if spec.kind != "state":
                taken = free[group] - self.cache.pools[group].num_free
                assert taken + more[group] == needed[group]
        self.grow(row, length)

    @precondition(lambda self: self.tokens and self.cache.can_fork and self.free_row() is not None)
    @rule(data=st.data(), other=st.integers(10, 20))
    def fork(self, data, other):
        source, row = data.draw(st.sampled_from(sorted(self.tokens))), self.free_row()
        if self.written[source] == 0:
            return
        common = data.draw(st.integers(1, min(self.written[source], MAX_LEN - 1)))
        if not self.cache.windows.sees(source, common):
            return
        self.cache.fork(source, row, common)
        more = data.draw(st.integers(1, MAX_LEN - common))
        self.tokens[row] = np.concatenate([self.tokens[source][:common], np.full(more, other, np.int32)])
        chain = self.chains[source]
        self.chains[row] = None if chain is None else chain.fork(common)
        self.written[row] = common
        self.cached[row] = 0 if chain is None else common - common % chain.unit

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def write(self, data):
        row = data.draw(st.sampled_from(sorted(self.tokens)))
        if self.written[row] < len(self.tokens[row]):
            self.grow(row, data.draw(st.integers(self.written[row] + 1, len(self.tokens[row]))))

    def grow(self, row, end):
        rows, starts, ends = int32([row]), int32([self.written[row]]), int32([end])
        more, free = needed_by(self.cache, [row], starts, ends), [pool.num_free for pool in self.cache.pools]
        short = self.cache.try_allocate(rows, starts, ends)
        left = [pool.num_free for pool in self.cache.pools]
        if short is not None:
            assert (short.tolist(), left) == (more.tolist(), free), "what is not given changes nothing"
            return
        assert left == [a - b for a, b in zip(free, more, strict=True)]
        self.step()
        for group, spec in enumerate(self.groups):
            if spec.kind != "state":
                table = self.cache.tables.row_blocks(group, row)
                for position in range(int(starts[0]), end):
                    self.contents[group][table[position // spec.block_size], position % spec.block_size] = self.tokens[
                        row
                    ][position]
        self.written[row] = end
        self.remember(row)

    def step(self):
        _, copies = self.cache.take_changes()
        for copy in copies:
            self.contents[copy.group][copy.targets] = self.contents[copy.group][copy.sources]
        self.copied.append(copies)
        if len(self.copied) > 1:
            self.cache.free_copied(self.copied.popleft())

    def remember(self, row):
        chain = self.chains[row]
        if chain is not None:
            first, last = self.cached[row] // chain.unit, self.written[row] // chain.unit
            self.cache.cache_blocks(row, chain, self.tokens[row], first, last)
            self.cached[row] = last * chain.unit

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free_behind(self, data):
        rows = data.draw(st.lists(st.sampled_from(sorted(self.tokens)), unique=True))
        positions = int32([self.written.get(row, 0) for row in range(ROWS)])
        self.cache.windows.free_behind(int32(rows), positions)
        for row in rows:
            for group, spec in enumerate(self.groups):
                if spec.window is not None:
                    held = len(self.cache.tables.live_blocks(group, row))
                    ahead = spec.blocks_of(len(self.tokens[row])) * spec.block_size - self.written[row]
                    assert held <= spec.most_held(MAX_LEN, max(ahead, 1))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def leave(self, data):
        row = data.draw(st.sampled_from(sorted(self.tokens)))
        self.cache.leave(row)
        del self.tokens[row]
        self.left.append(row)

    @precondition(lambda self: self.left)
    @rule()
    def free(self):
        self.cache.free(self.left.popleft())

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "cache"):
            return
        copies = [copy for copies in self.copied for copy in copies]
        self.cache.check([*self.tokens, *self.left], list(self.left), copies)
        for row, tokens in self.tokens.items():
            for group, spec in enumerate(self.groups):
                table = self.cache.tables.row_blocks(group, row)
                if spec.kind == "state":
                    assert len(table) == 1
                    continue
                held = self.contents[group][table].reshape(-1)[: self.written[row]]
                seen = slice(0 if spec.window is None else max(self.written[row] - spec.window + 1, 0), None)
                wrote = tokens[: self.written[row]]
                assert held[seen].tolist() == wrote[seen].tolist(), "a row lost what it wrote and still sees"

    def teardown(self):
        for row in list(self.tokens):
            self.cache.leave(row)
            self.left.append(row)
            del self.tokens[row]
        while self.left:
            self.cache.free(self.left.popleft())
        while self.copied:
            self.cache.free_copied(self.copied.popleft())
        self.cache.check([], [], [])
        assert self.cache.usage == 0.0


ManagerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
TestManager = ManagerMachine.TestCase


def needed_by(cache, rows, starts, ends):
    """Blocks that rows need of each group, without giving them."""
    short = cache.try_allocate(int32(rows), int32(starts), int32(ends), reserved=10**6)
    return np.zeros(len(cache.pools), np.int64) if short is None else short


def start(cache, row, tokens, end=None):
    """Opens a row and writes its tokens."""
    tokens = int32(tokens)
    chain = None if cache.prefix_cache is None else cache.prefix_cache.chain()
    hit = cache.get_computed_blocks(chain, tokens)
    cache.open(row, hit)
    end = len(tokens) if end is None else end
    assert cache.try_allocate(int32([row]), int32([hit.num_tokens]), int32([end])) is None
    if chain is not None:
        cache.cache_blocks(row, chain, tokens, hit.num_tokens // chain.unit, end // chain.unit)
    return hit


def test_the_beginnings_of_prompts_live_longest():
    cache = manager()
    start(cache, 0, range(12))
    blocks = cache.tables.row_blocks(0, 0).tolist()
    cache.leave(0)
    cache.free(0)
    for row, length in ((1, 40), (3, 40), (4, 4)):  # all but two of the blocks
        start(cache, row, [row + 100] * length)
    hit = cache.get_computed_blocks(cache.prefix_cache.chain(), int32(range(12)))
    assert hit.blocks[0].tolist() == blocks[:2]


def test_a_copy_is_made_only_where_two_go_on_in_one_block():
    cache = manager()
    start(cache, 0, range(6))
    cache.fork(0, 1, 5)
    cache.fork(0, 2, 4)
    cache.take_changes()
    assert cache.try_allocate(int32([2]), int32([4]), int32([5])) is None
    deltas, copies = cache.take_changes()
    assert (deltas[0].rows.tolist(), copies) == ([2], []), "it goes on in a block of its own"
    assert needed_by(cache, [0, 1], [6, 5], [7, 6]).tolist() == [1], "the last one to write keeps the block"
    assert cache.try_allocate(int32([0, 1]), int32([6, 5]), int32([7, 6])) is None
    deltas, copies = cache.take_changes()
    shared, own = int(cache.tables.row_blocks(0, 1)[1]), int(cache.tables.row_blocks(0, 0)[1])
    assert (copies[0].sources.tolist(), copies[0].targets.tolist()) == ([shared], [own])
    assert deltas[0].rows.tolist()[-1:] == [0]
    assert deltas[0].starts.tolist()[-1:] == [1]
    assert deltas[0].blocks.tolist()[-1:] == [own]
    assert needed_by(cache, [0, 1], [6, 5], [7, 6]).tolist() == [0]
    cache.check([0, 1, 2], [], copies)
    cache.free_copied(copies)
    cache.check([0, 1, 2], [], [])


def test_nobody_writes_into_what_somebody_leaves():
    """Its last step, which is in flight, may make the block known."""
    cache = manager()
    start(cache, 0, range(6))
    cache.fork(0, 1, 5)
    cache.leave(0)
    assert needed_by(cache, [1], [5], [6]).tolist() == [1], "a copy"
    cache.free(0)
    assert needed_by(cache, [1], [5], [6]).tolist() == [0]


def test_a_known_block_that_is_written_again_is_forgotten():
    cache = manager()
    start(cache, 0, [1, 2, 3, 4, 5])
    cache.fork(0, 1, 3)
    cache.leave(0)
    cache.free(0)
    cache.take_changes()
    assert cache.try_allocate(int32([1]), int32([3]), int32([4])) is None
    assert cache.take_changes()[1] == [], "nobody else holds it"
    chain = cache.prefix_cache.chain()
    assert cache.get_computed_blocks(chain, int32([1, 2, 3, 4, 5])).num_tokens == 0


def test_a_hit_ends_at_a_multiple():
    cache = manager()
    start(cache, 0, range(30))
    chain = cache.prefix_cache.chain()
    assert cache.get_computed_blocks(chain, int32(range(30))).num_tokens == 28
    hit = cache.get_computed_blocks(chain, int32(range(30)), 8)
    assert (hit.num_tokens, len(hit.blocks[0])) == (24, 6)


ENDLESS = np.iinfo(np.int32).max


@pytest.mark.parametrize(
    ("groups", "ahead", "tokens"),
    [
        ((PAGED,), ENDLESS, 92),
        ((PAGED, WINDOW), 16, 92),
        ((WINDOW, STATE), 16, ENDLESS),
        ((CacheGroup((1,), "window", 6, 1, 6, 8), STATE), 16, ENDLESS),
        ((CacheGroup((1,), "window", 6, 1, 5, 8), STATE), 16, 24),
    ],
)
def test_what_fits_alone_is_known(groups, ahead, tokens):
    """A window with room for itself and the steps in flight takes a request of any length."""
    assert manager(*groups, ahead=ahead).max_tokens == tokens


def test_a_long_request_with_a_window_holds_few_blocks():
    group = CacheGroup((0,), "window", 16, 1, 100, 512)
    cache = KVCacheManager(CachePlan((group,), 1, 10_016), prefix_caching=True, ahead=256)
    row, most = int32([0]), 0
    tokens = int32(range(10_000))
    chain = cache.prefix_cache.chain()
    needed = cache.blocks_to_start(cache.get_computed_blocks(chain, tokens), len(tokens))
    for start in range(0, 10_000, 128):
        end = min(start + 128, 10_000)
        assert cache.try_allocate(row, int32([start]), int32([end])) is None
        most = max(most, len(cache.tables.live_blocks(0, 0)))
        cache.cache_blocks(0, chain, tokens, start // 16, end // 16)
        cache.windows.free_behind(row, int32([end]))
        cache.check([0], [], [])
    assert most == (512 + 128) // 16, "the window and what is being computed; in all it would be 625"
    assert most <= needed[0] == group.most_held(10_000, 256) == 49
    hit = cache.get_computed_blocks(chain, tokens)
    assert hit.num_tokens == 9984
    assert np.count_nonzero(hit.blocks[0]) == 32, "the window is enough to go on"


def test_who_has_passed_a_prompt_cannot_share_it_any_more():
    cache = manager(NARROW)
    start(cache, 0, range(12))
    assert cache.windows.sees(0, 5)
    cache.windows.free_behind(int32([0]), int32([12]))
    assert not cache.windows.sees(0, 5)
    assert cache.windows.sees(0, 10)
    cache.fork(0, 1, 10)
    assert cache.tables.row_blocks(0, 1).tolist() == [0, 0, cache.tables.row_blocks(0, 0)[2]]


def test_states_without_room_for_copies_turn_prefixes_off():
    cache = manager(PAGED, STATE)
    assert cache.prefix_cache is None
    assert cache.snapshots is None
    assert not cache.can_fork
    start(cache, 3, range(5))
    assert [len(cache.tables.row_blocks(group, 3)) for group in range(2)] == [2, 1]
    assert cache.usage == pytest.approx(2 / 23)


def test_changes_of_a_row_that_nobody_saw_are_withdrawn():
    cache = manager()
    assert cache.try_allocate(int32([0, 1, 2]), int32([0, 0, 0]), int32([4, 9, 5])) is None
    kept = [cache.tables.row_blocks(0, row).tolist() for row in (0, 2)]
    cache.tables.withdraw(1)
    delta = cache.take_changes()[0][0]
    assert (delta.rows.tolist(), delta.counts.tolist()) == ([0, 2], [1, 2])
    assert delta.blocks.tolist() == [*kept[0], *kept[1]]


@pytest.mark.parametrize("broken", ["table", "count", "room"])
def test_the_check_sees_what_is_wrong(broken):
    cache = manager()
    start(cache, 0, range(6))
    cache.check([0], [], [])
    if broken == "table":
        cache.tables.blocks[0][0, 0] = cache.tables.blocks[0][0, 1]
    elif broken == "count":
        cache.tables.counts[0][0] -= 1
    else:
        cache.covered[1] = 4
    with pytest.raises(AssertionError):
        cache.check([0], [], [])


def test_what_an_encoder_made_is_held_from_start_to_end_and_shared_for_good():
    cache = manager(PAGED, CROSS)
    assert cache.prefix_cache is None
    hit = cache.get_computed_blocks(None, int32([1] * 5))
    assert cache.blocks_to_start(hit, 5, 9).tolist() == [2, 3]
    cache.open(0, hit, 9)
    assert cache.try_allocate(int32([0]), int32([0]), int32([5])) is None
    cache.fork(0, 1, 4)
    assert cache.blocks_to_fork().tolist() == [1, 0]
    assert cache.try_allocate(int32([0, 1]), int32([4, 4]), int32([9, 9])) is None
    assert cache.tables.row_blocks(1, 1).tolist() == cache.tables.row_blocks(1, 0).tolist()
    assert not any(copy.group == 1 for copy in cache.take_changes()[1])
    cache.leave(0)
    cache.free(0)
    assert not cache.has(cache.blocks_to_start(hit, 5, 13))
    assert cache.has(cache.blocks_to_start(hit, 5, 10), 3 * cache.grows)
    cache.check([1], [], [])


def test_the_blocks_of_an_encoder_follow_one_another_also_after_others_had_them():
    cache = manager(PAGED, CROSS)
    for row in (0, 1, 0, 1):
        cache.open(row, cache.get_computed_blocks(None, int32([1])), 9)
        first, *others = cache.tables.row_blocks(1, row).tolist()
        assert others == [first + 1, first + 2]
        cache.leave(row)
        cache.free(row)
