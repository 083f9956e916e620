"""Attention by torch_npu's fused op over blocks of tokens. It takes the rows' lengths as numbers of the host, so it
cannot be captured: it runs between captured pieces, on the tokens that there are."""

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
    Device,
    FullAttentionSpec,
    HeadsLayer,
    Launch,
    LayerSpec,
    Mixer,
    Reason,
)

ATTENTION = "npu::npu_fused_infer_attention_score"
ATTENTION_TAKES = (
    "query", "key", "value", "atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv", "block_table", "num_heads",
    "scale", "input_layout", "num_key_value_heads", "sparse_mode", "block_size",
)  # fmt: skip
WRITE = "npu::npu_scatter_pa_kv_cache"
WRITE_TAKES = ("key", "value", "key_cache", "value_cache", "slot_mapping", "cache_mode")

BLOCKS = (128, 64, 32, 16)
"""Tokens of a block: multiples of 16, the preferred number first."""
_HEADS_OF = 16  # elements; the size of a head is a multiple
_LONGEST_HEAD = 512

BY_ROW = 3
"""sparse_mode in which the last query of a row sees all of the row's keys."""
_MASK = 2048  # rows and columns of the mask that this mode wants, whatever the lengths


@dataclass(frozen=True)
class Plan:
    """What a group's layers launch."""

    # [T]: slot_mapping of the launch
    slots: Tensor
    # [rows, blocks]: block_tables of the launch
    tables: Tensor
    # of each row, where its queries end among those that are passed
    ends: list[int]
    # of each row, tokens in the cache
    lengths: list[int]
    # number of queries that are passed
    tokens: int
    # [tokens] int64: where these lie; None: they are the first ones
    places: Tensor | None


class FusedInferAttention(AttentionBackend):
    """attend, write: torch_npu's ops, or the reason why one is not there."""

    name = "fused_infer_attention"

    def __init__(self, attend: Any, write: Any) -> None:
        self.attend, self.write = attend, write
        self._masks: dict[Any, Tensor] = {}

    def supports(self, spec: LayerSpec) -> Reason | None:
        missing = next((one for one in (self.attend, self.write) if isinstance(one, str)), None)
        if missing is not None:
            return missing
        if spec.kind != "attention" or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.sinks or spec.softcap is not None or spec.window is not None:
            return "no windows, sinks or soft caps"
        if spec.dtype not in ("bfloat16", "float16") or spec.cache.dtype != spec.dtype:
            return "queries, keys and values in bfloat16 or float16 alone"
        if spec.head_dim % _HEADS_OF or spec.head_dim > _LONGEST_HEAD:
            return f"heads of a multiple of {_HEADS_OF} and at most {_LONGEST_HEAD} elements"
        return None

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(BLOCKS, block_multiple=False, dense_planes=True)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return Layer(spec, weights, ops, self, self._mask(device.target))

    def _mask(self, target: Any) -> Tensor:
        """[_MASK, _MASK]: what a query must not see. All layers share it."""
        if target not in self._masks:
            self._masks[target] = torch.ones(_MASK, _MASK, dtype=torch.bool, device=target).triu(1)
        return self._masks[target]

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Plan:
        """Nothing of it is captured, so nothing need keep its address."""
        number, rows = group.number, launch.num_rows
        counts = launch.query_lens_host[:rows]
        ends, tokens = counts.cumsum(), int(counts.sum())
        starts = launch.query_start_loc_host[:rows]
        places = None
        if not np.array_equal(starts, ends - counts):
            of_token = np.repeat(starts - (ends - counts), counts) + np.arange(tokens)
            places = group.device.to_device(of_token.astype(np.int64))
        lengths = launch.seq_lens_host[:rows].tolist()
        tables = launch.block_tables[number][:rows]
        return Plan(launch.slot_mapping[number], tables, ends.tolist(), lengths, tokens, places)


class Layer(HeadsLayer):
    def __init__(
        self,
        spec: LayerSpec,
        weights: Mapping[str, Tensor],
        ops: BoundOps,
        backend: FusedInferAttention,
        mask: Tensor,
    ) -> None:
        super().__init__(spec, weights, ops)
        self.backend, self.mask = backend, mask

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Plan) -> None:
        keys, values = caches[self.spec.layer]
        self.backend.write(
            key=k.contiguous(), value=v.contiguous(), key_cache=keys, value_cache=values, slot_mapping=plan.slots,
            cache_mode="Norm",
        )  # fmt: skip

    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "not among this backend's features"
        result = torch.zeros_like(q) if out is None else out
        if not plan.tokens:
            return result
        spec, (keys, values) = self.spec, caches[self.spec.layer]
        mixed, _ = self.backend.attend(
            query=(q[: plan.tokens] if plan.places is None else q[plan.places]).contiguous(), key=keys.flatten(2),
            value=values.flatten(2), atten_mask=self.mask, actual_seq_lengths=plan.ends,
            actual_seq_lengths_kv=plan.lengths, block_table=plan.tables, num_heads=spec.num_heads, scale=spec.scale,
            input_layout="TND", num_key_value_heads=spec.num_kv_heads, sparse_mode=BY_ROW, block_size=keys.shape[1],
        )  # fmt: skip
        if plan.places is None:
            result[: plan.tokens] = mixed
        else:
            result.index_copy_(0, plan.places, mixed)
        return result
