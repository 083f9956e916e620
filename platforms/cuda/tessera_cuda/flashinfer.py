"""Attention by the package flashinfer (FlashInfer, arXiv 2501.01005), where it is installed. One of its wrappers serves
all launches: "batch prefill" over pages, whose rows may have any number of queries, one included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import which
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.platform import AttentionGroup, Buffers, CacheConstraints, Device, Launch, LayerSpec, Reason
from tessera_triton import DeviceFacts, Launcher
from tessera_triton.providers import Provider
from tessera_triton.varlen import PackageAttention, PackageLayer, PackagePlan

_WRAPPER = "BatchPrefillWithPagedKVCacheWrapper"
FLASHINFER = {
    f"{_WRAPPER}.__init__": (
        "float_workspace_buffer", "kv_layout", "use_cuda_graph", "qo_indptr_buf", "paged_kv_indptr_buf",
        "paged_kv_indices_buf", "paged_kv_last_page_len_buf", "backend",
    ),
    f"{_WRAPPER}.plan": (
        "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads", "num_kv_heads",
        "head_dim_qk", "page_size", "causal", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "seq_lens",
        "disable_split_kv", "non_blocking",
    ),
    f"{_WRAPPER}.run": ("q", "paged_kv_cache", "return_lse", "lse_base"),
}  # fmt: skip
"""By method, the arguments that calls here name."""

_SCRATCH = 256 << 20  # bytes, for the sums of rows whose keys are split
_TILES = (16, 64, 128)  # queries times heads of a group that a program takes


class Planner:
    """A wrapper of the package, and the plan that it made last. It writes a plan to pinned memory of its own and copies
    it from there, so the next one waits until that copy is done, which it is once the step before has run."""

    def __init__(self, wrapper: Any, device: Device) -> None:
        self.wrapper = wrapper
        self.pinned = device.target.type == "cuda"
        self.copied = torch.cuda.Event() if self.pinned else None
        self.newest: FlashInferPlan | None = None

    def host(self, values: np.ndarray[Any, Any]) -> Tensor:
        """An array on the host from which copies do not wait for the device."""
        found = torch.empty(values.shape, dtype=torch.int32, pin_memory=self.pinned)
        found.numpy()[...] = values
        return found

    def plan(self, **arguments: Any) -> None:
        if self.copied is not None:
            self.copied.synchronize()
        self.wrapper.plan(**arguments)
        if self.copied is not None:
            self.copied.record()


@dataclass(frozen=True)
class FlashInferPlan(PackagePlan):
    planner: Planner


class FlashInfer(PackageAttention):
    """The package plans each launch on the host, for all layers of a group, from lengths and block tables that the host
    has, and copies what it found to the device; so launches can be captured: a graph reads the copies. Tokens between
    rows, and after the last, are rows without keys.

    A row's pages begin with the first one that any of its queries sees, so blocks that were freed are never read.
    HEADS: the sizes that it has kernels for."""

    name = "flashinfer"
    HEADS: tuple[int, ...] = (64, 128, 256)

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        super().__init__(facts, launch)
        self.provider = Provider(self.name, "flashinfer", FLASHINFER)
        self.scratch: Tensor | None = None
        self.planners: dict[tuple[Any, ...], Planner] = {}

    def supports(self, spec: LayerSpec) -> Reason | None:
        return super().supports(spec) or self._lacks_kernels()

    def _declines(self, spec: LayerSpec) -> Reason | None:
        if spec.sinks:
            return "no sinks"
        if spec.head_dim not in self.HEADS:
            return f"heads of {spec.head_dim}, and it has {', '.join(map(str, self.HEADS))}"
        return super()._declines(spec)

    def _lacks_kernels(self) -> Reason | None:
        """Its kernels are compiled when a launch first needs them, unless a second package brings them."""
        if which("nvcc") or os.environ.get("CUDA_HOME") or find_spec("flashinfer_jit_cache"):
            return None
        return "it compiles its kernels: put nvcc on the PATH, set CUDA_HOME, or install flashinfer-jit-cache"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(
            block_sizes=(64, 16), align_bytes=16, dense_planes=True, host_tables=True,
            returns_lse=True,
        )  # fmt: skip

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> FlashInferPlan:
        spec, number, key = group.spec, group.number, launch.key
        size, table = launch.block_sizes[number], launch.block_tables_host[number]
        assert table is not None, "asked for by constraints()"
        rows, tokens = key.rows, key.tokens
        starts, lens = launch.query_start_loc_host, launch.query_lens_host
        if key.width == 1 and rows == tokens:
            starts, gaps = np.arange(rows + 1), False
        elif buffers is None and int(starts[launch.num_rows]) == launch.num_tokens:
            rows, tokens, gaps = launch.num_rows, launch.num_tokens, False
        else:
            gaps = True
        starts, lens, ends, table = starts[: rows + 1], lens[:rows], launch.seq_lens_host[:rows], table[:rows]

        first = np.zeros_like(ends) if spec.window is None else np.maximum(ends - lens - spec.window + 1, 0) // size
        pages = -(-ends // size)
        column = np.arange(table.shape[1])
        indices = table[(column >= first[:, None]) & (column < pages[:, None])].astype(np.int32)
        counts, lengths, last = pages - first, ends - first * size, np.where(ends > 0, (ends - 1) % size + 1, 0)
        if gaps:
            starts = np.minimum(starts, tokens)  # padding rows may start behind the last token
            starts = np.append(np.stack((starts[:-1], starts[:-1] + lens), 1).ravel(), tokens)
            counts, lengths, last = (np.stack((x, np.zeros_like(x)), 1).ravel() for x in (counts, lengths, last))

        planner = self._planner(group, buffers, len(lengths), tokens, rows * table.shape[1])
        planner.plan(
            qo_indptr=planner.host(starts), paged_kv_indptr=planner.host(np.append(0, np.cumsum(counts))),
            paged_kv_indices=group.device.to_device(indices), paged_kv_last_page_len=planner.host(last),
            num_qo_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, head_dim_qk=spec.head_dim, page_size=size,
            causal=True, sm_scale=spec.scale, window_left=-1 if spec.window is None else spec.window - 1,
            logits_soft_cap=spec.softcap or 0.0, q_data_type=getattr(torch, spec.dtype),
            seq_lens=planner.host(lengths), non_blocking=True,
            disable_split_kv=buffers is not None and not _fits_split(spec, len(lengths), tokens),
        )  # fmt: skip
        planner.newest = FlashInferPlan(launch.slot_mapping[number], size, tokens, planner)
        return planner.newest

    def _planner(self, group: AttentionGroup, buffers: Buffers | None, rows: int, tokens: int, pages: int) -> Planner:
        """One for all launches of a group that run eagerly, and one for each shape of those that are captured, in which
        its arrays keep their addresses and its grids their size."""
        shape = (group.name,) if buffers is None else (group.name, rows, tokens, pages)
        if shape not in self.planners:
            if self.scratch is None:
                self.scratch = torch.empty(_SCRATCH, dtype=torch.uint8, device=group.device.target)
            kept = {}
            if buffers is not None:
                shapes = {"qo_indptr": rows + 1, "paged_kv_indptr": rows + 1, "paged_kv_indices": pages,
                          "paged_kv_last_page_len": rows}  # fmt: skip
                kept = {
                    f"{name}_buf": buffers.get(f"{group.name}_{name}", (length,), "int32")
                    for name, length in shapes.items()
                }
            make = self.provider.function(_WRAPPER)
            wrapper = make(self.scratch, kv_layout="NHD", use_cuda_graph=buffers is not None, backend="fa2", **kept)
            self.planners[shape] = Planner(wrapper, group.device)
        return self.planners[shape]

    def attend(
        self, layer: PackageLayer, q: Tensor, keys: Tensor, values: Tensor, plan: FlashInferPlan, *, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        assert plan.planner.newest is plan, "a wrapper runs only what it planned last"
        found = plan.planner.wrapper.run(q, (keys, values), return_lse=lse, lse_base="ln")
        return (found[0], found[1]) if lse else (found, None)


def _fits_split(spec: LayerSpec, rows: int, tokens: int) -> bool:
    """Whether a captured launch may split keys: for that the package reserves the sums of the most tiles that so many
    rows and tokens can have, of the size that the longest row could want."""
    group = spec.num_heads // spec.num_kv_heads
    longest = (tokens - rows + 1) * group
    tile = next((tile for tile in _TILES if longest <= tile), _TILES[-1])
    return spec.num_kv_heads * (tokens * group + rows * tile) * (spec.head_dim + 1) * 4 <= _SCRATCH
