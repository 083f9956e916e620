"""The reference in blocks of a size of its own, whose null blocks are poisoned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tessera.platform.attention import CacheConstraints, Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.launch import Buffers, Launch
from tessera.platform.ops import BoundOps
from tessera.reference.attention import PagedPlan, ReferenceAttention, ReferenceAttentionLayer
from tessera.testing.poison import poison
from tessera.testing.strict.graphs import Current

BLOCK_SIZE = 24


class PoisonedNull(ReferenceAttentionLayer):
    """The null blocks hold NaN whatever was written there: who reads what a window has left behind gets it."""

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        for cache in caches[self.spec.layer]:
            poison(cache[0])
        return super().attend(q, caches, plan, out, lse)


class StrictAttention(ReferenceAttention):
    """The reference in blocks of 24, over int32 indices alone."""

    name = "strict"
    fallback = False

    def __init__(self, current: Current) -> None:
        self.current = current

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> PoisonedNull:
        return PoisonedNull(spec, weights, ops)

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return replace(super().constraints(spec), block_sizes=(BLOCK_SIZE,), block_multiple=False)

    def plan(self, launch: Launch, group: int, buffers: Buffers | None) -> PagedPlan:
        self.current.launch = launch  # which may be none of those captured
        for tensor in (*launch.slot_mapping, *launch.block_tables):
            assert tensor.dtype == torch.int32, tensor.dtype
        return super().plan(launch, group, buffers)
