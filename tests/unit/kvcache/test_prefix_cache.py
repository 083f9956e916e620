"""Blocks are found by their content, by nobody else's, and only while they hold it."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.kvcache import PrefixCache, prefix_cache
from tessera.platform import CacheGroup

TOKENS = int32(range(100, 148))


def groups(*sizes, window=None):
    """Groups of these block sizes; window: of the last of them."""
    last = len(sizes) - 1
    return [
        CacheGroup((at,), "window" if window and at == last else "paged", size, 1, 64, window if at == last else None)
        for at, size in enumerate(sizes)
    ]


def register(cache, chain, unit, *blocks):
    cache.register(chain, TOKENS, unit, unit + 1, dict(enumerate(blocks)))


def test_a_chain_is_sha256_over_raw_token_bytes():
    cache = PrefixCache(groups(16), salt=b"s" * 32)
    chain = cache.chain(b"key")
    root = hashlib.sha256(b"s" * 32 + b"key")
    first = hashlib.sha256(root.digest() + TOKENS[:16].tobytes()).digest()
    second = hashlib.sha256(first + TOKENS[16:32].tobytes()).digest()
    assert chain.link(1, TOKENS) == second
    assert chain.hashes == [first, second], "hashed no further than asked"
    assert chain.link(0, TOKENS) == first


def test_the_salt_is_random_at_every_start():
    chains = [PrefixCache(groups(16)).chain().link(0, TOKENS) for _ in range(2)]
    assert chains[0] != chains[1]


@pytest.mark.parametrize("other", [b"b", b"", b"aa"])
def test_each_cache_key_has_chains_of_its_own(other):
    cache = PrefixCache(groups(16))
    assert cache.chain(b"a").link(0, TOKENS) != cache.chain(other).link(0, TOKENS)
    assert cache.chain(b"a").link(0, TOKENS) == cache.chain(b"a").link(0, TOKENS)


def test_the_longest_known_prefix_is_found():
    cache = PrefixCache(groups(16))
    chain = cache.chain()
    register(cache, chain, 0, [5])
    register(cache, chain, 2, [7])
    assert cache.find(cache.chain(), TOKENS, 3).num_tokens == 16
    register(cache, chain, 1, [6])
    hit = cache.find(cache.chain(), TOKENS, 3)
    assert (hit.num_tokens, hit.blocks[0].tolist()) == (48, [5, 6, 7])
    assert cache.find(cache.chain(), TOKENS, 2).num_tokens == 32
    other = TOKENS.copy()
    other[3] += 1
    assert cache.find(cache.chain(), other, 3).num_tokens == 0


def test_a_look_up_hashes_one_unit_more_than_it_finds():
    cache = PrefixCache(groups(16))
    register(cache, cache.chain(), 0, [5])
    chain = cache.chain()
    cache.find(chain, TOKENS, 3)
    assert len(chain.hashes) == 2


def test_units_span_the_groups_block_sizes():
    cache = PrefixCache(groups(4, 6))
    assert cache.unit == 12
    chain = cache.chain()
    register(cache, chain, 0, [1, 2, 3], [1, 2])
    hit = cache.find(chain, TOKENS, 2)
    assert [blocks.tolist() for blocks in hit.blocks] == [[1, 2, 3], [1, 2]]
    cache.forget(1, [2])
    assert cache.find(chain, TOKENS, 2).num_tokens == 0, "one block is gone, so is the unit"
    cache.check()
    register(cache, chain, 0, [4, 5, 6], [7, 8])
    hit = cache.find(chain, TOKENS, 2)
    assert [blocks.tolist() for blocks in hit.blocks] == [[1, 2, 3], [1, 8]], "who was there first stays"
    cache.check()


@pytest.mark.parametrize("window", [1, 4, 5, 8, 9, 10, 30])
def test_of_a_window_the_blocks_in_sight_are_enough(window):
    """Against every prefix tried one by one."""
    for there in range(2**6):
        cache = PrefixCache(groups(8, 4, window=window))
        chain = cache.chain()
        for unit in range(3):
            pair = [10 + place if there >> (2 * unit + place) & 1 else 0 for place in (0, 1)]
            register(cache, chain, unit, [unit + 1], [block and block + 2 * unit for block in pair])
        right = [
            units
            for units in range(4)
            if all(there >> block & 1 for block in range(2 * units) if 4 * (block + 1) - 1 > 8 * units - window)
        ]
        hit = cache.find(chain, TOKENS, 3)
        assert hit.num_tokens == 8 * right[-1]
        assert hit.blocks[0].tolist() == list(range(1, right[-1] + 1))
        seen = max(hit.num_tokens - window + 1, 0) // 4
        assert hit.blocks[1].tolist() == [0] * seen + [10 + block for block in range(seen, 2 * right[-1])]
        even = [units for units in right if units % 2 == 0][-1]
        assert cache.find(chain, TOKENS, 3, step=2).num_tokens == 8 * even


def test_forgetting_takes_only_what_a_block_is_known_for():
    cache = PrefixCache(groups(16))
    chain = cache.chain()
    register(cache, chain, 0, [5])
    register(cache, chain, 0, [6])
    cache.forget(0, [6, 9])
    assert cache.find(chain, TOKENS, 1).blocks[0].tolist() == [5]
    cache.forget(0, [5])
    assert cache.find(chain, TOKENS, 1).num_tokens == 0
    register(cache, chain, 0, [6])
    cache.clear()
    assert cache.find(chain, TOKENS, 1).num_tokens == 0
    cache.check()


def test_a_forked_chain_knows_the_common_units_only():
    cache = PrefixCache(groups(16))
    chain = cache.chain()
    chain.link(2, TOKENS)
    fork = chain.fork(40)
    assert fork.hashes == chain.hashes[:2]
    other = TOKENS.copy()
    other[40:] = 1
    assert fork.link(2, other) != chain.link(2, TOKENS)


def test_the_check_sees_two_contents_of_a_block():
    cache = PrefixCache(groups(16))
    register(cache, cache.chain(), 0, [5])
    cache._blocks[0][0][b"other"] = 5
    with pytest.raises(AssertionError):
        cache.check()


def test_a_block_is_hashed_by_one_call(monkeypatch):
    """A call a token would cost as much as the step itself."""
    sizes = []

    def sha256(data):
        sizes.append(len(data))
        return hashlib.sha256(data)

    cache = PrefixCache(groups(16))
    monkeypatch.setattr(prefix_cache, "hashlib", SimpleNamespace(sha256=sha256))
    cache.chain().link(4095, int32(np.arange(65_536)))
    assert 4096 <= len(sizes) <= 4096 + 2
