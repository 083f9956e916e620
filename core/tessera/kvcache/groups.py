"""Splits the KV cache memory into cache groups: block sizes, layers that share a block, and blocks per group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from tessera.errors import ConfigError, MemoryBudgetError
from tessera.platform.attention import CrossSpec, SlidingWindowSpec, StateSpec
from tessera.platform.loaded_model import CacheNeeds, LoadedModel
from tessera.platform.runner import CacheGroup, CachePlan

if TYPE_CHECKING:
    from tessera.config import EngineConfig


SNAPSHOT_SHARE = 8
"""Of the bytes that states of rows leave, at most one in so many is for copies of states. Rows that are not in use hold
copies too, so that is how many there are at least."""


@dataclass(frozen=True)
class _Key:
    """What the layers of one group have in common."""

    kind: str
    block_size: int
    window: int | None = None
    length: int = 0
    states: int = 1

    @property
    def shape(self) -> CacheGroup:
        """A group of this kind, without layers and blocks."""
        return CacheGroup((), self.kind, self.block_size, 0, 0, self.window, self.length, self.states)


def solve(stages: Sequence[LoadedModel], config: EngineConfig, num_rows: int) -> list[CachePlan]:
    """Plans the cache of a model for num_rows rows, on each pipeline stage: one plan, if there is one stage.

    All stages have the same groups, with as many blocks as fit on every one of them, since a block holds the same
    tokens everywhere. The layers of a group, and so its bytes, are those of the stage.

    A state group gets one slot per row, and one more for each draft that a step may verify, plus the null slot, and
    with prefix caching up to one more per row for copies of states, as SNAPSHOT_SHARE of the rest has room for. A group
    of what encoders made gets the blocks of as many requests as there are rows, or as fit beside their tokens. The
    remaining bytes are divided so that all groups that grow with tokens hold the same number of tokens. A group with a
    window never gets more blocks than num_rows requests can hold at once if there is also a group without one, and gets
    fewer if max_model_len would not fit otherwise.

    Raises MemoryBudgetError if the cache is too small, ConfigError for a block size that a layer does not support, and
    PlatformError for a kind of cache that is not supported.
    """
    wanted = _block_size([needs for stage in stages for needs in stage.needs], config.cache.block_size)
    by_stage = [_by_key(stage.needs, wanted, config) for stage in stages]
    num_blocks: dict[_Key, int] = {}
    for stage, layers in zip(stages, by_stage, strict=True):
        for key, count in _num_blocks(layers, stage.cache_bytes, config, num_rows).items():
            num_blocks[key] = min(count, num_blocks.get(key, count))
    plans = []
    for layers in by_stage:
        groups = (_group(key, layers.get(key, []), count) for key, count in num_blocks.items())
        plans.append(CachePlan(tuple(groups), num_rows, config.model.max_model_len))
    return plans


def null_plan(needs: Sequence[CacheNeeds], config: EngineConfig) -> CachePlan:
    """A plan with the null block of each group and no others."""
    layers = _by_key(needs, _block_size(needs, config.cache.block_size), config)
    groups = (_group(key, members, 1) for key, members in layers.items())
    return CachePlan(tuple(groups), config.scheduler.max_num_seqs, config.model.max_model_len)


def _by_key(needs: Sequence[CacheNeeds], block_size: int | None, config: EngineConfig) -> dict[_Key, list[CacheNeeds]]:
    layers: dict[_Key, list[CacheNeeds]] = {}
    for one in needs:
        layers.setdefault(_key(one, block_size, config.scheduler.max_decode_tokens), []).append(one)
    return layers


def _group(key: _Key, layers: Sequence[CacheNeeds], num_blocks: int) -> CacheGroup:
    numbers = tuple(needs.layer for needs in layers)
    return replace(key.shape, layers=numbers, block_bytes=_block_bytes(layers, key.block_size), num_blocks=num_blocks)


def _num_blocks(
    layers: Mapping[_Key, Sequence[CacheNeeds]], cache_bytes: int, config: EngineConfig, num_rows: int
) -> dict[_Key, int]:
    """Blocks of each group of one stage, including the null block."""
    block_bytes = {key: _block_bytes(members, key.block_size) for key, members in layers.items()}
    own = {key: num_rows * key.states + 1 for key in layers if key.kind == "state"}
    states = {key: block_bytes[key] * count for key, count in own.items()}
    growing = {key: nbytes for key, nbytes in block_bytes.items() if key.shape.grows}
    crossing = {key: key.shape.blocks_of(0) for key in layers if key.kind == "cross"}
    nulls = sum(nbytes for key, nbytes in block_bytes.items() if key not in states)
    left = cache_bytes - sum(states.values()) - nulls
    encoded = sum(blocks * block_bytes[key] for key, blocks in crossing.items())
    most_encoders = _most_encoders(growing, encoded, left, config, num_rows)
    left -= most_encoders * encoded
    each = sum(block_bytes[key] for key in own)
    spare = _spare_states(config, each, left, num_rows)
    for copies in (spare, 0) if spare else (0,):
        sizing = _Sizing(growing, max(left - copies * each, 0), _ahead(config), config.model.max_model_len)
        counts = sizing.counts(num_rows)
        if not growing or sizing.longest(counts) >= config.model.max_model_len:
            break
    _check_room(config, cache_bytes, left, sizing.longest(counts) if growing else None)
    counts |= {key: most_encoders * blocks for key, blocks in crossing.items()}
    return {
        key: own[key] + copies if key in own else min(counts[key] + 1, _most_blocks(members, key.block_size))
        for key, members in layers.items()
    }


def _most_encoders(
    growing: Mapping[_Key, int], encoded: int, free_bytes: int, config: EngineConfig, num_rows: int
) -> int:
    """How many requests, each with the longest text, so many bytes have room for, at most one a row and at least one.
    growing: bytes per block of the groups that grow. encoded: bytes of what an encoder made."""
    longest, ahead = config.model.max_model_len, _ahead(config)
    tokens = sum(key.shape.most_held(longest, ahead) * nbytes for key, nbytes in growing.items())
    return max(1, min(num_rows, free_bytes // max(encoded + tokens, 1)))


def _spare_states(config: EngineConfig, nbytes: int, free_bytes: int, num_rows: int) -> int:
    """Copies of all states of a row, of nbytes each, that so many bytes are to hold beside those of rows."""
    if not config.cache.prefix_caching or not nbytes:
        return 0
    return min(num_rows, max(free_bytes, 0) // SNAPSHOT_SHARE // nbytes)


def _ahead(config: EngineConfig) -> int:
    """The most tokens of one request that the steps in flight may compute."""
    depth = config.scheduler.depth or config.parallel.pipeline_parallel_size + 1
    return depth * config.scheduler.max_num_batched_tokens


class _Sizing:
    """Divides the remaining bytes into blocks of the groups that grow. nbytes: bytes per block of each group."""

    def __init__(self, nbytes: Mapping[_Key, int], free_bytes: int, ahead: int, max_model_len: int) -> None:
        self._nbytes = nbytes
        self._free_bytes = free_bytes
        self._max_model_len = max_model_len
        self._unit = lcm(*(key.block_size for key in nbytes))
        self._max_blocks = {key: key.shape.most_held(max_model_len, ahead) for key in nbytes}
        self._bounded = [key for key in nbytes if key.window is not None and any(k.window is None for k in nbytes)]

    def counts(self, num_rows: int) -> dict[_Key, int]:
        """Number of blocks of each group, excluding the null block."""
        for rows in _halved(num_rows):
            counts = self._dealt(rows)
            if self.longest(counts) >= self._max_model_len:
                break
        return counts

    def _dealt(self, rows: int) -> dict[_Key, int]:
        """Blocks per group: enough for `rows` concurrent requests in the groups with a window, and an equal number of
        tokens in the others."""
        full: dict[_Key, int] = {}
        while True:
            rest = [key for key in self._nbytes if key not in full]
            left = self._free_bytes - sum(count * self._nbytes[key] for key, count in full.items())
            units = left // sum(self._unit // key.block_size * self._nbytes[key] for key in rest) if rest else 0
            counts = {key: max(units, 0) * (self._unit // key.block_size) for key in rest}
            over = {key: rows * self._max_blocks[key] for key in rest if key in self._bounded}
            over = {key: most for key, most in over.items() if counts[key] > most}
            if not over:
                return counts | full
            full |= over

    def longest(self, counts: Mapping[_Key, int]) -> int:
        """Tokens of the longest request that fits alone; max_model_len for a group whose whole window fits."""
        return min(
            (
                self._max_model_len
                if key.window is not None and count >= self._max_blocks[key]
                else count * key.block_size
                for key, count in counts.items()
            ),
            default=0,
        )


def _halved(count: int) -> Iterator[int]:
    while count:
        yield count
        count //= 2


def _key(needs: CacheNeeds, block_size: int | None, states: int) -> _Key:
    spec = needs.spec
    if isinstance(spec, StateSpec):
        return _Key("state", 0, states=states)
    size = needs.block_sizes[0] if block_size is None else block_size
    if isinstance(spec, CrossSpec):
        return _Key("cross", size, length=spec.length)
    return _Key("window", size, spec.window) if isinstance(spec, SlidingWindowSpec) else _Key("paged", size)


def _block_size(needs: Sequence[CacheNeeds], wanted: int | None) -> int | None:
    """The block size shared by all layers that grow with tokens. None if they have none in common; each layer then uses
    the one it prefers."""
    growing = [layer for layer in needs if not isinstance(layer.spec, StateSpec)]
    if wanted is not None:
        for layer in growing:
            if not _can(layer, wanted):
                sizes = ", ".join(map(str, layer.block_sizes)) + (" or a multiple" if layer.block_multiple else "")
                raise ConfigError(
                    f"--block-size {wanted} is not supported by layer {layer.layer}: it takes {sizes}.",
                    param="cache.block_size",
                )
        return wanted
    preferred = [size for layer in growing for size in layer.block_sizes]
    candidates = [*preferred, lcm(*(layer.block_sizes[0] for layer in growing))]
    return next((size for size in candidates if all(_can(layer, size) for layer in growing)), None)


def _can(needs: CacheNeeds, size: int) -> bool:
    if size in needs.block_sizes:
        return True
    return size > 0 and needs.block_multiple and any(size % own == 0 for own in needs.block_sizes)


def _block_bytes(members: Sequence[CacheNeeds], block_size: int) -> int:
    """Bytes of one block: its layers one after another, each at its required alignment."""
    align = lcm(1, *(needs.align_bytes for needs in members))
    total = 0
    for needs in members:
        total = _up(total, needs.align_bytes) + needs.layout(block_size).nbytes
    return _up(total, align)


def _up(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align


def _most_blocks(members: Sequence[CacheNeeds], block_size: int) -> int:
    """The most blocks for which every slot number still fits the layers' index type."""
    return min(int(np.iinfo(needs.index_dtype).max) // block_size for needs in members)


def _check_room(config: EngineConfig, cache_bytes: int, free_bytes: int, num_tokens: int | None) -> None:
    """free_bytes: after states and null blocks. num_tokens: tokens that fit; None if no group grows with tokens."""
    given = f"The KV cache of {cache_bytes / 2**20:,.1f} MiB"
    if free_bytes < 0 or num_tokens == 0:
        raise MemoryBudgetError(f"{given} has no room for a single block; raise --kv-cache-memory-bytes.")
    if num_tokens is not None and num_tokens < config.model.max_model_len:
        raise MemoryBudgetError(
            f"{given} has room for {num_tokens:,} tokens, but one request may have {config.model.max_model_len:,}; "
            f"lower --max-model-len to {num_tokens} or raise --kv-cache-memory-bytes."
        )
