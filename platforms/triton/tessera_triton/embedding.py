"""Embeddings: the rows of a weight for given tokens. One program copies a stretch of one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, EmbeddingSpec, Kernel
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
