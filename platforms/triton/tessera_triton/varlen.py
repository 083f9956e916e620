"""Attention by a package of others, over the library's cache. A backend says which layers the package takes, how it is
called, and what it plans; VarlenAttention plans rows of any length, one after another, each with a block table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    AttentionLayer,
    BoundOps,
    Buffers,
    Caches,
    Device,
    FullAttentionSpec,
    Launch,
    LayerSpec,
    Reason,
)
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.layer import CachedLayer
from tessera_triton.providers import Provider

_DTYPES = ("bfloat16", "float16")
_WIDEST = 256  # the largest head size


@dataclass(frozen=True)
class PackagePlan:
    """slots, size: of the cache. tokens: so many, counted from the first, belong to rows; all others get zeros, as does
    a row without keys."""

    slots: Tensor
    size: int
    tokens: int


@dataclass(frozen=True)
class VarlenPlan(PackagePlan):
    """The rows of a launch, as packages of attention take them."""

    # [R, blocks]: of the rows' keys
    table: Tensor
    # [R]: of the rows' keys
    lengths: Tensor
    # [R + 1]: where their queries start, and where the last one's end; None: row i is token i, which is its only query
    starts: Tensor | None
    # [R + 1]: where keys would end if they lay side by side, 0 first; None unless there are starts and it is wanted
    ends: Tensor | None
    # at least the most queries of a row
    width: int
    # at least the most keys of a row
    longest: int


class PackageAttention(AttentionBackend):
    """provider: where its functions are."""

    provider: Provider

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        self.facts, self.launch = facts, launch or Launcher()

    def supports(self, spec: LayerSpec) -> Reason | None:
        return self.provider.absent or self._declines(spec) or self.provider.broken

    def _declines(self, spec: LayerSpec) -> Reason | None:
        """Why the package does not take a layer. Here: what none of them takes."""
        cache = spec.cache
        if spec.kind != "attention" or not isinstance(cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.dtype not in _DTYPES:
            return f"no kernels for {spec.dtype}"
        if cache.quant is not None or cache.dtype != spec.dtype:
            return f"keys and values in {cache.dtype}"
        if spec.head_dim % 8 or spec.head_dim > _WIDEST:
            return f"heads of {spec.head_dim}, not a multiple of 8 up to {_WIDEST}"
        return None

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> AttentionLayer:
        return PackageLayer(self, spec, weights, ops)

    @abstractmethod
    def attend(
        self, layer: PackageLayer, q: Tensor, keys: Tensor, values: Tensor, plan: Any, *, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Calls the package. q: of the plan's tokens [tokens, H, D], dense. keys, values [blocks, size, Hk, D]. Returns
        [tokens, H, D], and with lse the natural log-sum-exp of the scores [tokens, H] float32."""


class VarlenAttention(PackageAttention):
    """cumulative: it wants VarlenPlan.ends."""

    cumulative = False

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> VarlenPlan:
        """What is captured must hold for all launches of its shape, whose rows may be shorter than the stride between
        them. There, and where a launch that runs eagerly has such gaps, each token is a row of its own."""
        key, rows = launch.key, launch.num_rows
        table, size = launch.block_tables[group.number], launch.block_sizes[group.number]
        dense = int(launch.query_start_loc_host[rows]) == launch.num_tokens
        starts, ends = None, None
        width, tokens, longest = 1, key.tokens, table.shape[1] * size
        if buffers is None:
            longest = min(int(launch.seq_lens_host[:rows].max(initial=0)), longest)
            table = table[:, : -(-longest // size)]  # packages split as many keys as it could hold
        if key.width == 1 and key.rows == key.tokens:
            lengths = launch.seq_lens
        elif buffers is None and dense:
            table, lengths, tokens = table[:rows], launch.seq_lens[:rows], launch.num_tokens
            starts, width = launch.query_start_loc[: rows + 1], int(launch.query_lens_host[:rows].max(initial=0))
        else:
            table, lengths = _by_token(launch, table, buffers, group.name)
        if starts is not None and self.cumulative:
            ends = torch.zeros_like(starts)
            torch.cumsum(lengths, 0, dtype=ends.dtype, out=ends[1:])
        return VarlenPlan(
            launch.slot_mapping[group.number], size, tokens, table, lengths, starts, ends, width, longest
        )  # fmt: skip


class PackageLayer(CachedLayer):
    """window: what the package calls window_size, (-1, -1) for none. cap: the soft cap, 0 for none."""

    def __init__(
        self, backend: PackageAttention, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps
    ) -> None:
        super().__init__(spec, weights, ops, backend.facts, backend.launch)
        self.backend = backend
        self.window = (-1, -1) if spec.window is None else (spec.window - 1, 0)
        self.cap = spec.softcap or 0.0

    def attend(self, q: Tensor, caches: Caches, plan: PackagePlan, out: Tensor | None = None, lse: bool = False) -> Any:
        keys, values = caches[self.spec.layer]
        made, sums = q[:0], q.new_empty(0, q.shape[1], dtype=torch.float32) if lse else None
        if plan.tokens:
            made, sums = self.backend.attend(self, q[: plan.tokens].contiguous(), keys, values, plan, lse=lse)
        if out is not None:
            out[: plan.tokens].copy_(made)
            out[plan.tokens :].zero_()
            made = out
        else:
            made = _filled(made, len(q))
        return (made, None if sums is None else _filled(sums, len(q))) if lse else made


def _filled(rows: Tensor, length: int) -> Tensor:
    """rows [n, ...], followed by zeros: [length, ...]."""
    missing = length - len(rows)
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) if missing else rows


def _by_token(launch: Launch, table: Tensor, buffers: Buffers | None, name: str) -> tuple[Tensor, Tensor]:
    """Of each token: the block table of its row [T, blocks], and how many keys it sees [T], itself included; 0 for a
    token of no row."""
    starts, asked = launch.query_start_loc, launch.query_lens
    token = torch.arange(launch.key.tokens, dtype=starts.dtype, device=starts.device)
    row = torch.searchsorted(starts, token, right=True, out_int32=True).sub_(1).clamp_(max=launch.key.rows - 1)
    place = token - starts.index_select(0, row)
    asked = asked.index_select(0, row)
    seen = launch.seq_lens.index_select(0, row) - asked + place + 1
    seen = torch.where(place < asked, seen, 0)
    tables = table.index_select(0, row)
    if buffers is None:
        return tables, seen
    kept_tables = buffers.get(f"{name}_tables", tables.shape, "int32")
    kept_seen = buffers.get(f"{name}_seen", seen.shape, "int32")
    return kept_tables.copy_(tables), kept_seen.copy_(seen)
