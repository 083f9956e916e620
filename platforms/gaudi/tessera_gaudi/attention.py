"""Attention by SynapseAI's FusedSDPA over blocks of tokens. A mask, made once per launch, says what each query sees, so
what is captured knows nothing of the rows' lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    CacheSpec,
    Device,
    FullAttentionSpec,
    HeadsLayer,
    KVLayout,
    Launch,
    LayerSpec,
    Mixer,
    Plane,
    Reason,
    persistent,
)

BLOCK, LEAST_BLOCK = 128, 16
"""Tokens of a block, and the fewest that it may have. A read of fewer tokens leaves the memory's bandwidth unused."""

SOFTMAX = "None"
"""FusedSDPA's softmax that is not approximate."""


@dataclass(frozen=True)
class Plan:
    """R rows of W places, K keys of each row. block, offset [T]: where each token's key and value go. tables [R,
    blocks]. mask [R, 1, W, K] act: 0 where a query sees a key, otherwise the least number. unread [R, K, 1, 1]: keys
    that no query of a row sees. token [R, W]: the token at each place; back [T]: the place of each token; None where
    the places are the tokens, in order."""

    block: Tensor
    offset: Tensor
    tables: Tensor
    mask: Tensor
    unread: Tensor
    token: Tensor | None = None
    back: Tensor | None = None


class FusedAttention(AttentionBackend):
    """fused: habana_frameworks' FusedSDPA, or the reason why it is not there."""

    name = "fused_sdpa"

    def __init__(self, fused: Any) -> None:
        self.fused = fused

    def supports(self, spec: LayerSpec) -> Reason | None:
        if isinstance(self.fused, str):
            return self.fused
        if spec.kind != "attention" or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.sinks or spec.softcap is not None:
            return "no sinks and no soft cap"
        return None if spec.cache.dtype == spec.dtype else f"keys and values are kept in {spec.dtype} alone"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints((BLOCK, LEAST_BLOCK), dense_planes=True, host_lengths="none")

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, FullAttentionSpec)
        axes = ("token", block_size), ("head", spec.num_kv_heads), ("dim", spec.head_dim)
        return KVLayout((Plane("k", spec.dtype, axes), Plane("v", spec.dtype, axes)))

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return Layer(spec, weights, ops, self.fused)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Plan:
        number = group.number
        size, slots, tables = launch.block_sizes[number], launch.slot_mapping[number], launch.block_tables[number]
        width = torch.arange(launch.key.width, device=tables.device)
        position = (launch.seq_lens - launch.query_lens)[:, None] + width  # [R, W]
        key = torch.arange(tables.shape[1] * size, device=tables.device)
        seen = (key <= position[:, :, None]) & (key < launch.seq_lens[:, None, None])  # [R, W, K]
        if group.spec.window is not None:
            seen = seen & (key > position[:, :, None] - group.spec.window)
        kind = getattr(torch, group.spec.dtype)
        mask = torch.zeros(seen.shape, dtype=kind, device=tables.device).masked_fill(~seen, torch.finfo(kind).min)
        unread = ~seen.any(1)[:, :, None, None]
        plan = Plan(slots // size, slots % size, tables, mask[:, None], unread, *_places(launch, width))
        return persistent(plan, group.name, buffers)


def _places(launch: Launch, width: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Plan.token and Plan.back."""
    key, rows = launch.key, launch.num_rows
    starts = np.arange(rows) * key.width
    if key.tokens == key.rows * key.width and np.array_equal(launch.query_start_loc_host[:rows], starts):
        return None, None
    first, count = launch.query_start_loc[:-1, None], launch.query_lens[:, None]
    token = torch.where(width < count, first + width, 0)
    before = torch.arange(key.tokens, device=width.device) - first  # [R, T]
    row = ((before >= 0) & (before < count)).to(torch.int32).argmax(0)
    place = before.gather(0, row[None])[0].clamp(0, key.width - 1)
    return token, row * key.width + place


class Layer(HeadsLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, fused: Any) -> None:
        super().__init__(spec, weights, ops)
        self.fused_sdpa = fused

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Plan) -> None:
        for cache, values in zip(caches[self.spec.layer], (k, v), strict=True):
            cache.index_put_((plan.block, plan.offset), values)

    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "not among this backend's features"
        keys, values = (self._of_rows(cache, plan) for cache in caches[self.spec.layer])
        places = q.unflatten(0, plan.mask.shape[::2]) if plan.token is None else q[plan.token]  # [R, W, H, D]
        mixed: Tensor = self.fused_sdpa.apply(
            places.transpose(1, 2), keys, values, plan.mask, 0.0, False, self.spec.scale, SOFTMAX, True
        )
        tokens = mixed.transpose(1, 2).flatten(0, 1)
        result = tokens if plan.back is None else tokens[plan.back]
        return result if out is None else out.copy_(result)

    @staticmethod
    def _of_rows(cache: Tensor, plan: Plan) -> Tensor:
        """[R, Hk, K, D], with zeros for keys that are not read, since what is there may be anything, NaN included."""
        return cache[plan.tables].flatten(1, 2).masked_fill(plan.unread, 0.0).transpose(1, 2)
