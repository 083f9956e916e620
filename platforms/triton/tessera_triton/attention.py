"""Attention over a paged cache: which layers it takes, what a launch needs, and the bound layer. Rows with few queries
go to decode.py, others to copied.py or prefill.py; layer.py writes the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    KV_FP8,
    KV_INT8,
    AttentionBackend,
    AttentionGroup,
    AttentionLayer,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    Device,
    FullAttentionSpec,
    Launch,
    LayerSpec,
)
from tessera_triton.cache import IN_FP8, IN_INT8
from tessera_triton.copying import Attend, Copying, Rows
from tessera_triton.decode import combine_splits, decode_rows
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.layer import CachedLayer
from tessera_triton.prefill import prefill_tiles
from tessera_triton.tiles import decode_tile, prefill_tile

_DTYPES = ("bfloat16", "float16", "float32")
_WIDEST = 256  # the largest head size
_MOST_GROUPED = 64  # query heads of a head of keys
_FEW = 64  # queries times heads of a group that decode.py takes
_LEAST_KEYS = 256  # of a split
_MOST_SPLITS = 64


@dataclass(frozen=True)
class PagedPlan:
    """The tensors of a launch, and what its shape says."""

    # slot_mapping of the launch
    slots: Tensor
    # block_tables of the launch
    table: Tensor
    # query_start_loc of the launch
    starts: Tensor
    # query_lens of the launch
    lengths: Tensor
    # seq_lens of the launch
    ends: Tensor
    # of the launch, padding included
    rows: int
    # of the launch, padding included
    tokens: int
    # how many rows, counted from the first, go to decode.py
    few: int
    # tokens of the longest of these
    few_width: int
    # where the next row's tokens start
    others_start: int
    # of the keys of rows that go to decode.py
    splits: int
    # whether row i has token i, or none
    fills: bool
    # whether some tokens may be no row's
    padded: bool
    # tokens of a block
    size: int


class TritonAttention(AttentionBackend):
    """Full and sliding-window attention, with grouped queries, soft caps and sinks. Keys and values are kept as they
    are, in int8, or in fp8 where the device converts it."""

    name = "triton"

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        self.facts, self.launch = facts, launch or Launcher()
        self._agreeing: dict[LayerSpec, bool] = {}

    def supports(self, spec: LayerSpec) -> str | None:
        cache = spec.cache
        if spec.kind != "attention" or not isinstance(cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.dtype not in _DTYPES:
            return f"no kernels for {spec.dtype}"
        if spec.head_dim % 8 or spec.head_dim > _WIDEST:
            return f"heads of {spec.head_dim}, not a multiple of 8 up to {_WIDEST}"
        if spec.num_heads > _MOST_GROUPED * spec.num_kv_heads:
            return f"more than {_MOST_GROUPED} query heads for a head of keys"
        if cache.quant == KV_FP8 and cache.dtype == KV_FP8.dtype and self.facts.fp8 != KV_FP8.dtype:
            return f"{self.facts.name} does not convert {KV_FP8.dtype}"
        kept = (spec.dtype, None), (KV_INT8.dtype, KV_INT8), (KV_FP8.dtype, KV_FP8)
        return None if (cache.dtype, cache.quant) in kept else f"keys and values in {cache.dtype}"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(64, 16), align_bytes=16, dense_planes=True, returns_lse=True)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> AttentionLayer:
        layer = PagedLayer(spec, weights, ops, self.facts, self.launch)
        copying = Copying(self.facts, self.launch, spec, layer.factors)
        if copying.able and self._agrees(copying, layer.load, device):
            layer.copying = copying
        return layer

    def _agrees(self, copying: Copying, load: Attend, device: Device) -> bool:
        """Whether copied keys give what loaded ones do, which is tried once for each kind of layer."""
        if not self.launch.computes or device.target.type == "meta":
            return True
        kind = replace(copying.spec, layer=0)
        if kind not in self._agreeing:
            self._agreeing[kind] = copying.agrees(load, device.target)
        return self._agreeing[kind]

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        """The tensors are those of the launch, which keep their addresses. What is captured must hold for all launches
        of its shape; one that runs eagerly may look at the lengths of its rows."""
        key, spec = launch.key, group.spec
        grouped = spec.num_heads // spec.num_kv_heads
        size = launch.block_sizes[group.number]
        few, few_width, others_start = 0, 1, 0
        if grouped * key.width <= _FEW:
            few, few_width = key.rows, key.width
        elif buffers is None:
            single = launch.query_lens_host[: launch.num_rows] == 1
            few = int(single.argmin()) if not single.all() else launch.num_rows
            others_start = int(launch.query_start_loc_host[few])
        fills = few == key.rows == key.tokens and few_width == 1
        table = launch.block_tables[group.number]
        return PagedPlan(
            launch.slot_mapping[group.number],
            table,
            launch.query_start_loc,
            launch.query_lens,
            launch.seq_lens,
            key.rows,
            key.tokens,
            few,
            few_width,
            others_start,
            self._splits(few * spec.num_kv_heads, table.shape[1] * size, spec.window),
            fills,
            not fills and (buffers is not None or key.tokens != launch.num_tokens),
            size,
        )

    def _splits(self, programs: int, keys: int, window: int | None) -> int:
        """Parts into which the keys of each row are divided so that the device is busy. keys: the most of any row."""
        keys = keys if window is None else min(keys, window + _FEW)
        wanted = min(2 * self.facts.processors // max(programs, 1), keys // _LEAST_KEYS, _MOST_SPLITS)
        return power_of_two(wanted + 1) // 2 if wanted > 1 else 1


class PagedLayer(CachedLayer):
    """copying: of rows of many queries; None: their keys are loaded."""

    copying: Copying | None = None

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        q = q if q.stride(-1) == 1 else q.contiguous()
        if out is not None and out.stride(-1) == 1:
            made = out
        else:
            make = torch.zeros if plan.padded else torch.empty
            made = make(q.shape, dtype=q.dtype, device=q.device)
        sums = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if lse else None
        if plan.few and plan.tokens:
            self._decode(q, caches, plan, made, sums)
        if plan.others_start < plan.tokens and plan.few < plan.rows:
            self._prefill(q, caches, plan, made, sums)
        result = made if out is None or made is out else out.copy_(made)
        return (result, sums) if lse else result

    @property
    def _sinks(self) -> Tensor | None:
        return self.weights["sinks"] if self.spec.sinks else None

    @property
    def factors(self) -> tuple[float, float]:
        """The scale of scores, in powers of two unless they are capped, and the cap."""
        spec = self.spec
        return (spec.scale * log2(e), 1.0) if spec.softcap is None else (spec.scale, spec.softcap)

    @property
    def _constants(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "KV_HEADS": spec.num_kv_heads, "GROUP": self.group, "DIM": spec.head_dim, "WINDOW": spec.window or 0,
            "CAPPED": spec.softcap is not None, "SINKS": spec.sinks, "IN_INT8": self.cache_format == IN_INT8.value,
            "IN_FP8": self.cache_format == IN_FP8.value, "BLOCK_D": max(self.dim, 16),
        }  # fmt: skip

    def _decode(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor, sums: Tensor | None) -> None:
        spec, splits, sinks = self.spec, plan.splits, self._sinks
        heads = spec.num_heads
        planes = self._planes(caches)
        queries, key_bytes = self.group * plan.few_width, planes[0].element_size()
        tile = decode_tile(self.facts, spec.dtype, spec.head_dim, queries, key_bytes)
        alone = splits == 1
        parts, logs = out, q if sums is None else sums
        if not alone:
            parts = torch.empty(len(q), heads, splits, spec.head_dim, dtype=torch.float32, device=q.device)
            logs = torch.empty(len(q), heads, splits, dtype=torch.float32, device=q.device)
        self.launch(
            decode_rows, (plan.few, spec.num_kv_heads, splits),
            q, q.stride(0), q.stride(1), *planes, plan.table, plan.table.stride(0), plan.starts,
            plan.lengths, plan.ends, q if sinks is None else sinks, parts, parts.stride(0), parts.stride(1), logs,
            *self.factors, **self._constants, SIZE=plan.size, SUMS=sums is not None, SPLITS=splits, FILLS=plan.fills,
            BLOCK_M=tile.queries, BLOCK_N=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if not alone:
            self.launch(
                combine_splits, (plan.few * plan.few_width, heads),
                parts, logs, plan.starts, plan.lengths, out, out.stride(0), out.stride(1),
                q if sums is None else sums,
                WIDTH=plan.few_width, HEADS=heads, DIM=spec.head_dim, SUMS=sums is not None, SPLITS=splits,
                FILLS=plan.fills, BLOCK_D=self.dim, num_warps=1 if splits * self.dim <= 2048 else 4,
            )  # fmt: skip

    def _prefill(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor, sums: Tensor | None) -> None:
        def tiles(queries: int) -> int:
            return (plan.tokens - 1) // queries - plan.others_start // queries + plan.rows - plan.few

        of = Rows(plan.table, plan.starts, plan.lengths, plan.ends, plan.few, plan.rows, plan.tokens, tiles)
        copying = self.copying
        attend = self.load if copying is None or not copying.takes(q, plan.size) else copying
        attend(q, self._planes(caches), plan.size, q if self._sinks is None else self._sinks, of, out, sums)

    def load(
        self, q: Tensor, planes: Sequence[Any], size: int, sinks: Tensor, rows: Rows, out: Tensor, sums: Tensor | None
    ) -> None:
        """As Attend says, with prefill.py."""
        key_bytes = planes[0].element_size()
        tile = prefill_tile(self.facts, self.spec.dtype, self.spec.head_dim, self.group, key_bytes)
        self.launch(
            prefill_tiles, (rows.tiles(tile.queries // self.group), self.spec.num_kv_heads),
            q, q.stride(0), q.stride(1), *planes, rows.table, rows.table.stride(0), rows.starts, rows.lengths,
            rows.ends, sinks, out, out.stride(0), out.stride(1), q if sums is None else sums, *self.factors, rows.first,
            rows.rows,
            **self._constants, SIZE=size, SUMS=sums is not None, BLOCK_M=tile.queries, BLOCK_N=tile.keys,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
