"""Attention over a paged cache: which layers it takes, what a launch needs, and the bound layer. Rows with few queries
go to decode.py, others to copied.py or prefill.py; layer.py writes the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import e, log2
from typing import Any

import numpy as np
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
    Reason,
)
from tessera_triton.cache import IN_FP8, IN_INT8
from tessera_triton.copying import OFF, PLAIN, SPECIALIZED, Attend, Copying, Rows
from tessera_triton.decode import LEAST_KEYS, combine_parts, decode_rows
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.layer import CachedLayer
from tessera_triton.prefill import prefill_tiles
from tessera_triton.tiles import decode_tile, prefill_tile

log = logging.getLogger("tessera.triton")

Trial = Callable[[Copying, Attend, Device], Reason | None]
"""Why copied keys do not give what loading them does on a device; None if they do."""

_DTYPES = ("bfloat16", "float16", "float32")
_WIDEST = 256  # the largest head size
_MOST_GROUPED = 64  # query heads of a head of keys
_FEW = 64  # queries times heads of a group that decode.py takes
_TURN = 64  # the most keys of a turn there
_BUSY = 2  # programs of decode.py on a processor that keep it busy


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
    # programs of decode.py beside one for each of its rows, by each head of keys; they divide long rows
    spare: int
    # whether some row may be divided
    divides: bool
    # whether row i has token i, or none
    fills: bool
    # whether some tokens may be no row's
    padded: bool
    # tokens of a block
    size: int


def tried_here(copying: Copying, load: Attend, device: Device) -> Reason | None:
    """As Trial says, in this process."""
    return copying.difference(load, device.target)


class TritonAttention(AttentionBackend):
    """Full and sliding-window attention, with grouped queries, soft caps and sinks. Keys and values are kept as they
    are, in int8, or in fp8 where the device converts it. copies: one of copying.CHOICES. trial: of copied keys, made
    once for each kind of layer."""

    name = "triton"

    def __init__(
        self, facts: DeviceFacts, launch: Launcher | None = None, *, copies: str = PLAIN, trial: Trial = tried_here
    ) -> None:
        self.facts, self.launch, self.copies, self.trial = facts, launch or Launcher(), copies, trial
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
        copying = Copying(self.facts, self.launch, spec, layer.factors, self.copies == SPECIALIZED)
        if self.copies != OFF and copying.able and self._agrees(copying, layer.load, device):
            layer.copying = copying
        return layer

    def _agrees(self, copying: Copying, load: Attend, device: Device) -> bool:
        """Whether copied keys give what loaded ones do, which is tried once for each kind of layer. If they do not, the
        log says so in one line."""
        if not self.launch.computes or device.target.type == "meta":
            return True
        kind = replace(copying.spec, layer=0)
        if kind not in self._agreeing:
            why = self.trial(copying, load, device)
            if why is not None:
                size = copying.spec.head_dim
                log.warning("attention does not copy keys by hardware for heads of %d here: %s", size, why)
            self._agreeing[kind] = why is None
        return self._agreeing[kind]

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        spec = group.spec
        grouped = spec.num_heads // spec.num_kv_heads
        spare = max(_BUSY * self.facts.processors // spec.num_kv_heads, 1)
        return paged_plan(launch, group.number, buffers, _FEW // grouped, spare, spec.window)


def paged_plan(
    launch: Launch, number: int, buffers: Buffers | None, few_tokens: int, spare: int, window: int | None
) -> PagedPlan:
    """The tensors are those of the launch, which keep their addresses. What is captured must hold for all launches
    of its shape; one that runs eagerly may look at the lengths of its rows. number: of the cache group. few_tokens: of
    a row, that decode.py takes."""
    key = launch.key
    few, few_width, others_start = 0, 1, 0
    if key.width <= few_tokens:
        few, few_width = key.rows, key.width
    elif buffers is None:
        single = launch.query_lens_host[: launch.num_rows] == 1
        few = int(single.argmin()) if not single.all() else launch.num_rows
        others_start = int(launch.query_start_loc_host[few])
    fills = few == key.rows == key.tokens and few_width == 1
    return PagedPlan(
        launch.slot_mapping[number],
        launch.block_tables[number],
        launch.query_start_loc,
        launch.query_lens,
        launch.seq_lens,
        key.rows,
        key.tokens,
        few,
        few_width,
        others_start,
        spare,
        buffers is not None or _divides(launch.seq_lens_host[:few], spare, window),
        fills,
        not fills and (buffers is not None or key.tokens != launch.num_tokens),
        launch.block_sizes[number],
    )


def _divides(ends: Any, spare: int, window: int | None) -> bool:
    """Whether decode.py may divide a row. ends [R]: tokens of its rows in the cache. One with less than twice the keys
    of a part is whole; keys are counted in turns there, and a window may begin within one, so some are added."""
    keys = ends if window is None else np.minimum(ends, window + 2 * _TURN)
    return bool(keys.max(initial=0) + _TURN > 2 * max(keys.sum() / spare, LEAST_KEYS.value))


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
        spec, spare, width, sinks = self.spec, plan.spare, plan.few_width, self._sinks
        planes, strides = self._planes(caches), (out.stride(0), out.stride(1))
        tile = decode_tile(self.facts, spec.dtype, spec.head_dim, self.group * width, planes[0].element_size())
        # All divided rows together have no more parts than there are spare programs.
        most = spare * width if plan.divides else 0
        counts = (plan.few, spare, width, int(plan.fills))
        results = q if sums is None else sums
        parts = torch.empty(most, spec.num_heads, spec.head_dim, dtype=torch.float32, device=q.device)
        logs = torch.empty(most, spec.num_heads, dtype=torch.float32, device=q.device)
        self.launch(
            decode_rows, (plan.few + spare, spec.num_kv_heads),
            q, q.stride(0), q.stride(1), *planes, plan.table, plan.table.stride(0), plan.starts, plan.lengths,
            plan.ends, q if sinks is None else sinks, out, *strides, results, *self.factors, parts, logs, *counts,
            **self._constants, SIZE=plan.size, SUMS=sums is not None, BLOCK_M=tile.queries, BLOCK_N=tile.keys,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if plan.divides:
            self.launch(
                combine_parts, (min(plan.few, max(spare // 2, 1)) * width, spec.num_heads),
                parts, logs, plan.starts, plan.lengths, plan.ends, out, *strides, results, *counts,
                HEADS=spec.num_heads, DIM=spec.head_dim, WINDOW=spec.window or 0, SUMS=sums is not None,
                BLOCK_N=tile.keys, BLOCK_D=self.dim, num_warps=4 if self.dim <= 128 else 8,
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
