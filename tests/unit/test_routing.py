"""The longest known prefix within a bound on load, beside what plain dictionaries say."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.routing import PrefixRouting, hashed_blocks
from tessera.routing.policy import IMBALANCE, SLACK, PrefixIndex, ReplicaLoads


def blocks_of(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in numbers]


def routing_of(count: int, capacity: int = 100) -> PrefixRouting:
    routing = PrefixRouting(capacity)
    for replica in range(count):
        routing.add(replica)
    return routing


def test_hashes_are_equal_as_far_as_blocks_are():
    data = bytes(range(200))
    first = hashed_blocks(data, 64, b"root")
    assert len(first) == 3, "a part of a block is none"
    assert hashed_blocks(data[:128] + b"x" * 64, 64, b"root")[:2] == first[:2]
    assert hashed_blocks(data[:128] + b"x" * 64, 64, b"root")[2] != first[2]
    assert set(hashed_blocks(data, 64, b"other")).isdisjoint(first)
    image = hashed_blocks(data, 64, b"root", {1: b"digest"})
    assert image[0] == first[0]
    assert set(image[1:]).isdisjoint(first)
    assert len(hashed_blocks(bytes(64 * 5000), 64, b"")) == 512


def test_the_longest_prefix_wins_then_the_least_load_then_turns():
    routing = routing_of(4)
    routing.begin(2, blocks_of(1, 2, 3))
    routing.begin(3, blocks_of(1, 2))
    assert routing.choose(blocks_of(1, 2, 3, 4), 0b1111) == 2
    assert routing.choose(blocks_of(1, 2, 3, 4), 0b1011) == 3, "the next longest, if the best cannot"
    assert [routing.choose(blocks_of(9), 0b1111) for _ in range(4)] == [0, 1, 0, 1]
    assert routing.choose((), 0b1100) in (2, 3)
    assert routing.choose(blocks_of(1), 0) is None


def test_a_prefix_counts_only_within_the_bound():
    routing = routing_of(2)
    chosen = []
    for _ in range(40):
        replica = routing.choose(blocks_of(1, 2), 0b11)
        routing.begin(replica, blocks_of(1, 2))
        chosen.append(replica)
        share = sum(routing.loads[each] for each in (0, 1)) / 2
        assert max(routing.loads[each] for each in (0, 1)) <= IMBALANCE * share + SLACK + 1
    assert chosen[:4] == [chosen[0]] * 4
    assert len(set(chosen)) == 2


def test_what_was_sent_least_recently_is_forgotten_from_the_end_of_a_prompt():
    index = PrefixIndex(4)
    index.insert(0, blocks_of(1, 2, 3))
    index.insert(0, blocks_of(7, 8))
    assert dict(index.prefixes(blocks_of(1, 2, 3))) == {1: 2}
    index.insert(0, blocks_of(1, 2))
    index.insert(0, blocks_of(9, 10))
    assert list(index.prefixes(blocks_of(7, 8))) == []
    assert list(index.prefixes(blocks_of(1, 2))) == [(1, 2)]
    index.forget(0)
    assert index._holders == {}


@pytest.mark.parametrize("seed", range(4))
def test_against_a_search_through_all_replicas(seed):
    rng = np.random.default_rng(seed)
    replicas, routing = 9, routing_of(9, capacity=10_000)
    known: list[set[int]] = [set() for _ in range(replicas)]
    loads = [0] * replicas
    running: list[int] = []
    for _ in range(800):
        if running and rng.random() < 0.4:
            ended = running.pop(int(rng.integers(len(running))))
            routing.finish(ended)
            loads[ended] -= 1
            continue
        opening = int(rng.integers(6))
        prompt = [opening * 100 + place for place in range(int(rng.integers(1, 12)))]
        available = [replica for replica in range(replicas) if rng.random() < 0.8] or [0]
        chosen = routing.choose(blocks_of(*prompt), sum(1 << replica for replica in available))
        most = int(IMBALANCE * sum(loads[each] for each in available) / len(available)) + SLACK
        depths = {
            each: next((at for at, block in enumerate(prompt) if block not in known[each]), len(prompt))
            for each in available
        }
        able = [each for each in available if depths[each] and loads[each] <= most]
        if able:
            deepest = max(depths[each] for each in able)
            best = [each for each in able if depths[each] == deepest]
        else:
            best = available
        assert chosen in best
        assert loads[chosen] == min(loads[each] for each in best)
        routing.begin(chosen, blocks_of(*prompt))
        known[chosen].update(prompt)
        loads[chosen] += 1
        running.append(chosen)


def test_loads_forget_what_was_removed():
    loads = ReplicaLoads()
    for replica in range(3):
        loads.add(replica)
    loads.change(1, 5)
    assert loads.total(0b111) == 5
    assert loads.least(0b010, max_load=4) is None
    assert loads.remove(1) == 5
    assert (loads.total(0b111), loads.least(0b010)) == (0, None)
