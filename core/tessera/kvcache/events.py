"""What becomes of the blocks of a prefix cache, in the words of vLLM's KV events
(https://docs.vllm.ai/en/latest/api/vllm/distributed/kv_events/), by which routers know what an engine has cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.arrays import Array
from tessera.kvcache.prefix_cache import HashChain, PrefixCache
from tessera.platform.runner import CacheGroup
from tessera.request import make_cache_key

ATTENTION_KINDS: Mapping[str, str] = {"paged": "full_attention", "window": "sliding_window"}
"""By the kind of a group, what routers call it. They cannot match the others, of which there are no events."""

_HASH_BYTES = 8
_NUM_HASHES = 1 << 8 * _HASH_BYTES

ExtraKeys = list[str | tuple[str, int]]


class BlockStored(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Consecutive blocks of one prefix can be shared from now on."""

    # [blocks] unsigned, 64 bits.
    block_hashes: list[int]
    # Of the block before the first; None where a prompt begins.
    parent_block_hash: int | None
    # Of all of its blocks, in order.
    token_ids: list[int]
    block_size: int
    # Routers tell adapters by their names.
    lora_id: None = None
    # The memory of the engine's own device.
    medium: None = None
    # Of the adapter that computed them; None: the model alone.
    lora_name: str | None
    # [blocks] what their content depends on beside tokens: the adapter's name, the digest of each image or sound in the
    # block with where it starts, from the block's first token, and in a prompt's first block a digest of the salt.
    extra_keys: list[ExtraKeys | None]
    group_idx: int
    kv_cache_spec_kind: str
    # In tokens; None without a window.
    kv_cache_spec_sliding_window: int | None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Blocks can no longer be shared."""

    block_hashes: list[int]
    # The memory of the engine's own device.
    medium: None = None
    group_idx: int


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """No block can be shared any longer, in any group."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class ObservedPrefixCache(PrefixCache):
    """A prefix cache that says which blocks are stored and removed, as soon as they are."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        salt: bytes | None = None,
        *,
        emit: Callable[[KVEvent], None],
        adapter_name: Callable[[Mapping[str, str]], str | None],
    ) -> None:
        """emit: takes each event, in order. adapter_name: of what Request.feature_args name; None: the model alone."""
        super().__init__(groups, salt)
        self._emit = emit
        self._adapter_name = adapter_name

    def register(
        self, chain: HashChain, tokens: Array, first: int, last: int, blocks_by_group: Mapping[int, Sequence[int]]
    ) -> None:
        matchable = {group: blocks for group, blocks in blocks_by_group.items() if self._is_matchable(group)}
        before = {group: self._links[group].keys() & blocks for group, blocks in matchable.items()}
        super().register(chain, tokens, first, last, blocks_by_group)
        for group, blocks in matchable.items():
            known = self._links[group]
            fresh = [block in known and block not in before[group] for block in blocks]
            for start, end in _runs(fresh):
                place = first * self._per_unit[group] + start
                self._emit(self._stored(group, chain, tokens, place, place + end - start))

    def forget(self, group: int, blocks: Iterable[int]) -> None:
        known = self._links[group]
        hashes = [self._hash(*known[block]) for block in known.keys() & blocks]
        super().forget(group, blocks)
        if hashes and self._is_matchable(group):
            self._emit(BlockRemoved(block_hashes=hashes, group_idx=group))

    def clear(self) -> None:
        super().clear()
        self._emit(AllBlocksCleared())

    def block_hashes(self, group: int) -> set[int]:
        """Of all blocks of a group that can be shared."""
        return {self._hash(link, place) for link, place in self._links[group].values()}

    def _is_matchable(self, group: int) -> bool:
        return self._groups[group].kind in ATTENTION_KINDS

    def _hash(self, link: bytes, place: int) -> int:
        """place: of the block within its unit."""
        return (int.from_bytes(link[-_HASH_BYTES:], "big") + place) % _NUM_HASHES

    def _stored(self, group: int, chain: HashChain, tokens: Array, first: int, last: int) -> BlockStored:
        """Blocks first to last (exclusive) of a request."""
        spec, per_unit = self._groups[group], self._per_unit[group]
        size = spec.block_size

        def hash_of(block: int) -> int:
            unit, place = divmod(block, per_unit)
            return self._hash(chain.hashes[unit], place)

        name = self._adapter_name(chain.feature_args)
        return BlockStored(
            block_hashes=[hash_of(block) for block in range(first, last)],
            parent_block_hash=hash_of(first - 1) if first else None,
            token_ids=tokens[first * size : last * size].tolist(),
            block_size=size,
            lora_name=name,
            extra_keys=[_extra_keys(chain, name, block * size, size) for block in range(first, last)],
            group_idx=group,
            kv_cache_spec_kind=ATTENTION_KINDS[spec.kind],
            kv_cache_spec_sliding_window=spec.window,
        )


def _extra_keys(chain: HashChain, adapter: str | None, start: int, size: int) -> ExtraKeys | None:
    """Of the block of so many tokens from `start` on."""
    keys: ExtraKeys = [] if adapter is None else [adapter]
    keys += [
        (one.digest.hex(), one.start - start) for one in chain.contents if one.start < start + size and one.end > start
    ]
    if not start and chain.cache_key != make_cache_key("", chain.feature_args):
        # Whoever knows a salt shares its owner's prefixes, so the salt itself is told nobody.
        keys.append(chain.cache_key.hex())
    return keys or None


def _runs(mask: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The first and the last place (exclusive) of each run of true values."""
    start = None
    for place, value in enumerate((*mask, False)):
        if value and start is None:
            start = place
        elif not value and start is not None:
            yield start, place
            start = None
