"""Embeddings: the rows of a weight for given tokens, and for their types. One program copies a stretch of one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, EmbeddingSpec, Kernel, SegmentEmbeddingSpec
from tessera_triton.activations import rows_of
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two

_STRETCH = 2048  # elements of a row that a program copies


@triton.jit
def _look_up(
    tokens, weight, weight_stride, out, n, start, rows, scale,
    SHARDED: tl.constexpr, SCALES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """SHARDED: only tokens from start to below start + rows are here; others give zeros, and nothing is read."""
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    row = tl.load(tokens + place).to(tl.int64)
    read = inside
    if SHARDED:
        row -= start
        read = inside & (row >= 0) & (row < rows)
    value = tl.load(weight + row * weight_stride + column, mask=read, other=0.0)
    if SCALES:
        value = (value.to(tl.float32) * scale).to(out.dtype.element_ty)
    tl.store(out + place * n + column, value, mask=inside)


@triton.jit
def _look_up_type(positions, boundaries, weight, weight_stride, out, n, TYPED: tl.constexpr, BLOCK: tl.constexpr):
    """TYPED: tokens have row 1 from their boundary on, and row 0 before it; otherwise all have row 0."""
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    row = weight
    if TYPED:
        row += (tl.load(positions + place) >= tl.load(boundaries + place)).to(tl.int64) * weight_stride
    tl.store(out + place * n + column, tl.load(row + column, mask=inside, other=0.0), mask=inside)


@dataclass(frozen=True)
class Embedding(Kernel[EmbeddingSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: EmbeddingSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        block = min(power_of_two(spec.n), _STRETCH)

        def embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            known, table = tokens.contiguous(), rows_of(weight, spec.n)
            if out is None or not out.is_contiguous():
                made = torch.empty(*tokens.shape, spec.n, dtype=weight.dtype, device=weight.device)
            else:
                made = out
            if known.numel():
                self.launch(
                    _look_up, (known.numel(), triton.cdiv(spec.n, block)), known, table, table.stride(0), made, spec.n,
                    spec.start, spec.rows, spec.scale,
                    SHARDED=spec.sharded, SCALES=spec.scale != 1.0, BLOCK=block, num_warps=max(block // 512, 1),
                )  # fmt: skip
            return made if out is None or made is out else out.copy_(made)

        return embedding


@dataclass(frozen=True)
class SegmentEmbedding(Kernel[SegmentEmbeddingSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: SegmentEmbeddingSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        block = min(power_of_two(spec.n), _STRETCH)

        def segment_embedding(
            positions: Tensor, boundaries: Tensor | None, weight: Tensor, *, out: Tensor | None = None
        ) -> Tensor:
            table = rows_of(weight, spec.n)
            if out is None or not out.is_contiguous():
                made = torch.empty(len(positions), spec.n, dtype=weight.dtype, device=weight.device)
            else:
                made = out
            if len(positions):
                self.launch(
                    _look_up_type, (len(positions), triton.cdiv(spec.n, block)), positions,
                    positions if boundaries is None else boundaries, table, table.stride(0), made, spec.n,
                    TYPED=boundaries is not None, BLOCK=block, num_warps=max(block // 512, 1),
                )  # fmt: skip
            return made if out is None or made is out else out.copy_(made)

        return segment_embedding
