"""Cross attention with the native kernels of attention over blocks, in bfloat16: each token sees as many keys as its
row's encoder has positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.platform import (
    SOURCES,
    AttentionGroup,
    BoundOps,
    Buffers,
    Caches,
    CrossLayer,
    CrossSpec,
    Device,
    Launch,
    LayerSpec,
)
from tessera_cpu import native
from tessera_cpu.paged import PagedAttention, PagedLayer, PagedPlan, why_not_kept


@dataclass(frozen=True)
class CrossPlan(PagedPlan):
    """launch: its keys are those of encoders, and each token also sees those that come after it. writes: a launch whose
    tokens are the positions that are written."""

    writes: PagedPlan

    @classmethod
    def of_launch(cls, launch: Launch, group: AttentionGroup) -> CrossPlan:
        table, sources = launch.block_tables[group.number], launch.columns[SOURCES]
        by_row = table, launch.query_start_loc, launch.query_lens, sources, launch.positions
        tensors = tuple(tensor.to(torch.int32) for tensor in (*by_row, launch.slot_mapping[group.number]))
        size, number = launch.block_sizes[group.number], len(tensors[-1])
        addresses, stride = [tensor.data_ptr() for tensor in tensors], tensors[0].stride(0)
        writes = PagedPlan(native.Launch(*addresses, None, stride, 0, number), tensors, size, padded=False)
        ahead = None
        if launch.key.width > 1:
            tensors = (*tensors, _tokens_after(launch))
            ahead = tensors[-1].data_ptr()
        reads = native.Launch(*addresses, ahead, stride, launch.num_rows, launch.key.tokens)
        padded = launch.key.tokens != launch.num_tokens or not bool(sources[: launch.num_rows].all())
        return cls(reads, tensors, size, padded, writes)


def _tokens_after(launch: Launch) -> Tensor:
    """[T] int32: how many of its row's tokens in the launch come after each."""
    after = np.zeros(launch.key.tokens, np.int32)
    for row in range(launch.num_rows):
        first, count = int(launch.query_start_loc_host[row]), int(launch.query_lens_host[row])
        after[first : first + count] = np.arange(count - 1, -1, -1)
    return torch.from_numpy(after)


class CrossAttention(PagedAttention):
    name = "native-cross"

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind != "cross_attention" or not isinstance(spec.cache, CrossSpec):
            return f"no cross attention over {spec.kind}"
        return why_not_kept(spec, spec.cache)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return PagedCrossLayer(spec, ops, self.library)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> CrossPlan:
        return CrossPlan.of_launch(launch, group)


class PagedCrossLayer(CrossLayer):
    def __init__(self, spec: LayerSpec, ops: BoundOps, library: Any) -> None:
        super().__init__(spec)
        self.paged = PagedLayer(spec, {}, ops, library)

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: CrossPlan) -> None:
        self.paged.write(k, v, caches, plan.writes)

    def attend(self, q: Tensor, caches: Caches, plan: CrossPlan) -> Tensor:
        mixed: Tensor = self.paged.attend(q, caches, plan)
        return mixed
