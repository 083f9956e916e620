"""States behind each drafted token: how layers that keep a state verify drafts, with any backend.

A row's block table has its state in the first column, and a block for each draft behind it. A launch that verifies
drafts computes the rows' newest tokens first, in the first column, as a decode step does. Then it computes their first
drafts in the second column, into which the state before them was copied, and so on. Once it is known how many drafts of
a row are right, the block behind the last of them becomes the first of its table (KVCacheManager.choose_states). So a
backend sees rows of one token alone, and a token's result has the bits that it has in a decode step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array, int32
from tessera.platform.attention import (
    AttentionBackend,
    AttentionGroup,
    CacheConstraints,
    Caches,
    CacheSpec,
    KVLayout,
    LayerSpec,
    Mixer,
    MixerSpec,
    StateSpec,
)
from tessera.platform.device import Device, Reason
from tessera.platform.launch import Buffers, Launch, LaunchKey, Plan
from tessera.platform.ops import BoundOps


@dataclass(frozen=True)
class TokenPlan:
    """One token of each row that has so many."""

    # [n] int32: the tokens in the launch
    at: Tensor
    # [n]: blocks of the states before them; None for the first token of each row, which is computed where that is
    before: Tensor | None
    # [n]: blocks of the states behind them
    after: Tensor
    # of the backend
    plan: Plan


@dataclass(frozen=True)
class VerifyPlan:
    """A launch that verifies drafts: the rows' first tokens, then their second ones, and so on."""

    tokens: tuple[TokenPlan, ...]
    # [T] int32: of each token of the launch, its place among those of `tokens` behind one another; 0 for padding
    place: Tensor


class DraftedStates(AttentionBackend):
    """A backend of layers that keep a state, which has a state behind each token of a launch that verifies drafts."""

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend, self.name, self.fallback = backend, backend.name, backend.fallback

    def handles(self, spec: MixerSpec) -> bool:
        return isinstance(spec.cache, StateSpec) and self.backend.handles(spec)

    def supports(self, spec: LayerSpec) -> Reason | None:
        return self.backend.supports(spec)

    def batch_invariant(self, spec: LayerSpec) -> Reason | None:
        return self.backend.batch_invariant(spec)

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return self.backend.constraints(spec)

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        return self.backend.kv_cache_layout(spec, block_size)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return DraftedStateLayer(spec, self.backend, self.backend.bind(spec, weights, ops, device))

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Plan:
        """A VerifyPlan, or that of the backend."""
        if launch.key.kind != "verify":
            return self.backend.plan(launch, group, buffers)
        placed = _Placed(launch, group, buffers)
        tokens = []
        for within in range(launch.key.width):
            rows = placed.rows_with(within)
            if not len(rows):
                break
            single = placed.launch_of(within, rows)
            own = replace(group, name=placed.name(within, "token"))
            after = single.block_tables[group.number][:, 0]
            before = placed.table(within - 1, rows)[:, 0] if within else None
            at = placed.put(placed.name(within, "at"), placed.tokens_at(within, rows))
            tokens.append(TokenPlan(at, before, after, self.backend.plan(single, own, buffers)))
        return VerifyPlan(tuple(tokens), placed.put(f"{group.name}_place", placed.places()))


class _Placed:
    """The tokens of a launch, by their index among those of their row. What is captured has all rows for each index,
    whether they have such a token or not, as only the launch's key is known; the others have the rows that do."""

    def __init__(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> None:
        self.launch, self.group, self.buffers = launch, group, buffers
        self.starts = launch.query_start_loc_host[:-1]
        self.lengths = launch.query_lens_host

    def put(self, name: str, values: Array) -> Tensor:
        if self.buffers is not None:
            return self.buffers.put(name, values, "int32")
        tensor: Tensor = self.group.device.to_device(values)
        return tensor

    def name(self, within: int, what: str) -> str:
        return f"{self.group.name}_{what}{within}"

    def rows_with(self, within: int) -> Array:
        """The rows that a token of this index is computed of."""
        if self.buffers is not None:
            return np.arange(len(self.lengths))
        return np.flatnonzero(self.lengths > within)

    def tokens_at(self, within: int, rows: Array) -> Array:
        """Where each row's token is in the launch; any place for a row without one."""
        places = self.starts[rows] + np.where(self.lengths[rows] > within, within, 0)
        return int32(np.minimum(places, self.launch.key.tokens - 1))

    def places(self) -> Array:
        """VerifyPlan.place"""
        places, before = np.zeros(self.launch.key.tokens, np.int32), 0
        for within in range(self.launch.key.width):
            rows = self.rows_with(within)
            has = self.lengths[rows] > within
            places[self.starts[rows[has]] + within] = before + np.flatnonzero(has)
            before += len(rows)
        return places

    def table(self, within: int, rows: Array) -> Tensor:
        """[n, 1]: the blocks of the states behind the rows' tokens."""
        column: Tensor = self.launch.block_tables[self.group.number][:, within : within + 1]
        return column if len(rows) == len(self.lengths) else column[self.put(self.name(within, "rows"), int32(rows))]

    def launch_of(self, within: int, rows: Array) -> Launch:
        """The launch that a decode step of these tokens would have. It has the token ids of the whole launch."""
        launch, number, count = self.launch, self.group.number, len(rows)
        lengths = int32(self.lengths[rows] > within)
        ends = int32(launch.seq_lens_host[rows] - self.lengths[rows] + within + 1) * lengths
        starts = np.arange(count + 1, dtype=np.int32)
        host_table = launch.block_tables_host[number]
        whole = count == len(self.lengths)
        return replace(
            launch,
            key=LaunchKey("decode", count, 1, launch.key.blocks, count, launch.key.bits),
            num_rows=launch.num_rows if whole else count,
            num_tokens=int(lengths.sum()),
            rows=launch.rows if whole else self.put(self.name(within, "numbers"), launch.rows_host[rows]),
            positions=self.put(self.name(within, "positions"), np.maximum(ends - 1, 0)),
            query_start_loc=self.put(self.name(within, "starts"), starts),
            query_lens=self.put(self.name(within, "lengths"), lengths),
            seq_lens=self.put(self.name(within, "ends"), ends),
            query_start_loc_host=starts,
            query_lens_host=lengths,
            seq_lens_host=ends,
            block_tables=_with(launch.block_tables, number, self.table(within, rows)),
            block_tables_host=_with(
                launch.block_tables_host, number, None if host_table is None else host_table[rows, within : within + 1]
            ),
            rows_host=launch.rows_host[rows],
        )


def _with(values: Sequence[Any], number: int, value: Any) -> list[Any]:
    return [*values[:number], value, *values[number + 1 :]]


class DraftedStateLayer(Mixer):
    """mixer: of the backend."""

    def __init__(self, spec: LayerSpec, backend: AttentionBackend, mixer: Mixer) -> None:
        self.spec, self.backend, self.mixer = spec, backend, mixer

    def fused(self, x: Any, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        if not isinstance(plan, VerifyPlan):
            return self.mixer.fused(x, positions, caches, plan)
        results = []
        for token in plan.tokens:
            if token.before is not None:
                self.backend.copy_states(caches[self.spec.layer], token.before, token.after)
            own = positions.index_select(-1, token.at)
            results.append(self.mixer.fused(_rows(x, token.at), own, caches, token.plan))
        return torch.cat(results).index_select(0, plan.place)


def _rows(x: Any, at: Tensor) -> Any:
    """Of a tensor [T, ...], or of a tuple of such."""
    return type(x)(*(_rows(one, at) for one in x)) if isinstance(x, tuple) else x.index_select(0, at)
