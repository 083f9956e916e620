"""Finds blocks by content: a SHA-256 chain over a request's token ids, and the blocks that hold each unit of it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tessera.arrays import Array, int32
from tessera.platform.runner import CacheGroup, unit_of
from tessera.request import NO_ARGS

SALT_BYTES = 32


class SpanContent(NamedTuple):
    """What the tokens of a span stand for, such as an image: two spans of the same tokens that differ in it are not
    the same."""

    # The position of the first token.
    start: int
    # The position after the last one.
    end: int
    # Equal only for equal contents.
    digest: bytes


class HashChain:
    """The hashes of one request's tokens: link i = SHA-256(link i-1, the raw int32 bytes of unit i, the contents that
    lie in it). Links are computed on demand. contents: in order of their positions. cache_key, feature_args: of the
    request; the root stands for them."""

    __slots__ = ("_root", "cache_key", "contents", "feature_args", "hashes", "unit")

    def __init__(
        self,
        root: bytes,
        unit: int,
        hashes: Sequence[bytes] = (),
        contents: Sequence[SpanContent] = (),
        cache_key: bytes = b"",
        feature_args: Mapping[str, str] = NO_ARGS,
    ) -> None:
        self._root = root
        self.unit = unit
        self.hashes = list(hashes)
        self.contents = contents
        self.cache_key = cache_key
        self.feature_args = feature_args

    def link(self, index: int, tokens: Array) -> bytes:
        """tokens: int32, contiguous, at least as long as units 0 to index."""
        return self.links(index, index + 1, tokens)[0]

    def links(self, first: int, last: int, tokens: Array) -> list[bytes]:
        """The links of units first to last (exclusive)."""
        hashes = self.hashes
        if last > len(hashes):
            size, sha256 = self.unit * tokens.itemsize, hashlib.sha256
            link = hashes[-1] if hashes else self._root
            data = tokens[len(hashes) * self.unit : last * self.unit].tobytes()
            for start in range(0, len(data), size):
                link = sha256(link + data[start : start + size] + self._within(len(hashes))).digest()
                hashes.append(link)
        return hashes[first:last]

    def _within(self, index: int) -> bytes:
        """The contents of which a unit has tokens, and where they start."""
        if not self.contents:
            return b""
        start, end = index * self.unit, (index + 1) * self.unit
        among = (one for one in self.contents if one.start < end and one.end > start)
        return b"".join(one.start.to_bytes(8, "little") + one.digest for one in among)

    def fork(self, num_tokens: int) -> HashChain:
        """The chain of another request that has the same first num_tokens tokens."""
        hashes = self.hashes[: num_tokens // self.unit]
        return HashChain(self._root, self.unit, hashes, self.contents, self.cache_key, self.feature_args)


@dataclass(frozen=True)
class PrefixHit:
    """blocks[group] hold the first num_tokens tokens of a request, in order. Blocks behind a sliding window are null,
    since no later token needs them. Of a group of states it is the one that has the state behind these tokens, or none
    for no tokens."""

    num_tokens: int
    blocks: tuple[Array, ...]


class PrefixCache:
    """Full blocks by content, for all groups of a cache, and states by the tokens that they hold.

    A unit is the least common multiple of the groups' block sizes, in tokens, so that a hit has the same length in all
    groups. A block is found by its unit's link and its place within the unit, a state by the link of its last unit.
    Chains start from `salt` (random per
    cache, so that hashes cannot be predicted from outside) and the request's cache key.
    """

    def __init__(self, groups: Sequence[CacheGroup], salt: bytes | None = None) -> None:
        self.unit = unit_of(groups)
        self._groups = groups
        self._salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        self._per_unit = [1 if group.kind == "state" else self.unit // group.block_size for group in groups]
        self._states = [index for index, group in enumerate(groups) if group.kind == "state"]
        self._whole = [
            index for index, group in enumerate(groups) if group.window is None and index not in self._states
        ]
        self._windows = [index for index, group in enumerate(groups) if group.window is not None]
        self._blocks: list[list[dict[bytes, int]]] = [[{} for _ in range(count)] for count in self._per_unit]
        self._links: list[dict[int, tuple[bytes, int]]] = [{} for _ in groups]

    def chain(
        self, cache_key: bytes = b"", contents: Sequence[SpanContent] = (), feature_args: Mapping[str, str] = NO_ARGS
    ) -> HashChain:
        """The start of a request's chain; equal only for the same Request.cache_key, of which its feature_args are a
        part."""
        root = hashlib.sha256(self._salt + cache_key).digest()
        return HashChain(root, self.unit, (), contents, cache_key, feature_args)

    def find(self, chain: HashChain, tokens: Array, num_units: int, step: int = 1) -> PrefixHit:
        """The longest cached prefix of at most num_units units whose number of units is a multiple of step. A group
        with a window only needs the blocks that the next token attends to; one of states, the state before it."""
        length = self._first_gap(chain, tokens, num_units) if self._whole else num_units
        length = self._with_states(chain, tokens, length, step)
        while length and (gap := self._gap_in_sight(chain, tokens, length)) is not None:
            length = self._with_states(chain, tokens, gap, step)
        return PrefixHit(
            length * self.unit, tuple(self._prefix_blocks(chain, group, length) for group in range(len(self._groups)))
        )

    def _first_gap(self, chain: HashChain, tokens: Array, num_units: int) -> int:
        """The first unit with a block missing in a group that keeps every token."""
        places = [blocks for group in self._whole for blocks in self._blocks[group]]
        for unit in range(num_units):
            link = chain.link(unit, tokens)
            if not all(link in blocks for blocks in places):
                return unit
        return num_units

    def _with_states(self, chain: HashChain, tokens: Array, length: int, step: int) -> int:
        """The most units, at most `length` and a multiple of step, behind which every group of states has its state."""
        length -= length % step
        places = [self._blocks[group][0] for group in self._states]
        while length and not all(chain.link(length - 1, tokens) in blocks for blocks in places):
            length -= step
        return length

    def _gap_in_sight(self, chain: HashChain, tokens: Array, length: int) -> int | None:
        """The first unit with a missing block that the token after `length` units would attend to. No prefix that ends
        between that unit and `length` can be used either."""
        gaps = []
        for group in self._windows:
            per_unit, blocks = self._per_unit[group], self._blocks[group]
            for index in range(self._groups[group].first_seen(length * self.unit), length * per_unit):
                unit, place = divmod(index, per_unit)
                if chain.link(unit, tokens) not in blocks[place]:
                    gaps.append(unit)
                    break
        return min(gaps, default=None)

    def _prefix_blocks(self, chain: HashChain, group: int, length: int) -> Array:
        per_unit, places = self._per_unit[group], self._blocks[group]
        if group in self._states:
            return int32([places[0][chain.hashes[length - 1]]] if length else [])
        found: Array = np.zeros(length * per_unit, dtype=np.int32)
        for index in range(self._groups[group].first_seen(length * self.unit), len(found)):
            unit, place = divmod(index, per_unit)
            found[index] = places[place][chain.hashes[unit]]
        return found

    def register(
        self, chain: HashChain, tokens: Array, first: int, last: int, blocks_by_group: Mapping[int, Sequence[int]]
    ) -> None:
        """Caches the blocks of units first to last (exclusive) of a request. tokens: the request's. blocks_by_group:
        those of some groups that hold the units, the same number for each unit, null for blocks already given back; of
        a group of states those behind the units. A unit that already has a block keeps it."""
        links = chain.links(first, last, tokens)
        for group, blocks in blocks_by_group.items():
            places, known = self._blocks[group], self._links[group]
            for place, block_of in enumerate(places):
                for link, block in zip(links, blocks[place :: len(places)], strict=True):
                    if block and block not in known and block_of.setdefault(link, block) == block:
                        known[block] = (link, place)

    def block(self, group: int, link: bytes, place: int) -> int:
        """The block in this place of the unit of a link; null if it is not cached."""
        return self._blocks[group][place].get(link, 0)

    def states(self, link: bytes) -> dict[int, int]:
        """The blocks of the states behind the unit of a link, by group."""
        return {group: self._blocks[group][0][link] for group in self._states if link in self._blocks[group][0]}

    def forget(self, group: int, blocks: Iterable[int]) -> None:
        """Drops these blocks from the cache, if they are in it."""
        known = self._links[group]
        for block in known.keys() & blocks:
            link, place = known.pop(block)
            del self._blocks[group][place][link]

    def clear(self) -> None:
        """Drops everything, for example after the weights have changed."""
        for blocks, known in zip(self._blocks, self._links, strict=True):
            known.clear()
            for block_of in blocks:
                block_of.clear()

    def check(self) -> None:
        """Asserts that the two mappings, links to blocks and blocks to links, agree."""
        for blocks, known in zip(self._blocks, self._links, strict=True):
            assert sum(map(len, blocks)) == len(known), "a block is known by two contents, or a content has no block"
            for block, (link, place) in known.items():
                assert blocks[place][link] == block, "a content names another block than the one that names it"
