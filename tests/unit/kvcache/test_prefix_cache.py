"""Blocks are found by their content, by nobody else's, and only while they hold it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.kvcache import PrefixCache

TOKENS = int32(range(100, 148))


def register(cache, chain, unit, *groups):
    cache.register(chain.link(unit, TOKENS), groups)


def test_a_chain_is_sha256_over_raw_token_bytes():
    cache = PrefixCache([16], salt=b"s" * 32)
    chain = cache.chain("tenant", "adapter")
    root = hashlib.sha256(b"s" * 32)
    for text in (b"tenant", b"adapter"):
        root.update(len(text).to_bytes(8, "little") + text)
    first = hashlib.sha256(root.digest() + TOKENS[:16].tobytes()).digest()
    second = hashlib.sha256(first + TOKENS[16:32].tobytes()).digest()
    assert chain.link(1, TOKENS) == second
    assert chain.hashes == [first, second], "hashed no further than asked"
    assert chain.link(0, TOKENS) == first


def test_the_salt_is_random_at_every_start():
    chains = [PrefixCache([16]).chain("", "").link(0, TOKENS) for _ in range(2)]
    assert chains[0] != chains[1]


@pytest.mark.parametrize("other", [("b", ""), ("", "a"), ("", ""), ("aa", "")])
def test_tenants_and_adapters_have_chains_of_their_own(other):
    cache = PrefixCache([16])
    assert cache.chain("a", "").link(0, TOKENS) != cache.chain(*other).link(0, TOKENS)


def test_the_longest_known_prefix_is_found():
    cache = PrefixCache([16])
    chain = cache.chain("", "")
    register(cache, chain, 0, [5])
    register(cache, chain, 2, [7])
    assert cache.find(cache.chain("", ""), TOKENS, 3).num_tokens == 16
    register(cache, chain, 1, [6])
    hit = cache.find(cache.chain("", ""), TOKENS, 3)
    assert (hit.num_tokens, hit.blocks[0].tolist()) == (48, [5, 6, 7])
    assert cache.find(cache.chain("", ""), TOKENS, 2).num_tokens == 32
    other = TOKENS.copy()
    other[3] += 1
    assert cache.find(cache.chain("", ""), other, 3).num_tokens == 0


def test_a_look_up_hashes_one_unit_more_than_it_finds():
    cache = PrefixCache([16])
    register(cache, cache.chain("", ""), 0, [5])
    chain = cache.chain("", "")
    cache.find(chain, TOKENS, 3)
    assert len(chain.hashes) == 2


def test_units_span_the_groups_block_sizes():
    cache = PrefixCache([4, 6])
    assert cache.unit == 12
    chain = cache.chain("", "")
    register(cache, chain, 0, [1, 2, 3], [1, 2])
    hit = cache.find(chain, TOKENS, 2)
    assert [blocks.tolist() for blocks in hit.blocks] == [[1, 2, 3], [1, 2]]
    cache.forget(1, 2)
    assert cache.find(chain, TOKENS, 2).num_tokens == 0, "one block is gone, so is the unit"
    cache.check()
    register(cache, chain, 0, [4, 5, 6], [7, 8])
    hit = cache.find(chain, TOKENS, 2)
    assert [blocks.tolist() for blocks in hit.blocks] == [[1, 2, 3], [1, 8]], "who was there first stays"
    cache.check()


def test_forgetting_takes_only_what_a_block_is_known_for():
    cache = PrefixCache([16])
    chain = cache.chain("", "")
    register(cache, chain, 0, [5])
    register(cache, chain, 0, [6])
    cache.forget(0, 6)
    cache.forget(0, 9)
    assert cache.find(chain, TOKENS, 1).blocks[0].tolist() == [5]
    cache.forget(0, 5)
    assert cache.find(chain, TOKENS, 1).num_tokens == 0
    register(cache, chain, 0, [6])
    cache.clear()
    assert cache.find(chain, TOKENS, 1).num_tokens == 0
    cache.check()


def test_a_forked_chain_knows_the_common_units_only():
    cache = PrefixCache([16])
    chain = cache.chain("", "")
    chain.link(2, TOKENS)
    fork = chain.fork(40)
    assert fork.hashes == chain.hashes[:2]
    other = TOKENS.copy()
    other[40:] = 1
    assert fork.link(2, other) != chain.link(2, TOKENS)


def test_the_check_sees_two_contents_of_a_block():
    cache = PrefixCache([16])
    register(cache, cache.chain("", ""), 0, [5])
    cache._blocks[0][0][b"other"] = 5
    with pytest.raises(AssertionError):
        cache.check()


def test_hashing_needs_little_time():
    """Of a whole prompt: a generous limit that one hash call a token would break."""
    import time

    cache = PrefixCache([16])
    tokens = int32(np.arange(65_536))
    began = time.perf_counter()
    cache.chain("", "").link(4095, tokens)
    assert time.perf_counter() - began < 0.05
