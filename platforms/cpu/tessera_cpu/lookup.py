"""Looks up rows of a weight that is packed for products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tessera.platform import PackedEmbeddingSpec
from tessera_cpu.native import Coding, PackedLookup

LookUp = Callable[..., Tensor]
"""(tokens [T] int32, packed, out=None) -> [T, k]."""


def bind_look_up(
    native: Any, kind: int, spec: PackedEmbeddingSpec, coding: Coding | None = None, *, scales_at: int = 0
) -> LookUp:
    """kind, coding: of the weight. scales_at: offset of its scales in bytes."""
    n, k, dtype = spec.linear.n, spec.linear.k, getattr(torch, spec.linear.dtype)
    task = PackedLookup(n=n, k=k, coding=coding or Coding(), start=spec.start, factor=spec.scale)

    def look_up(tokens: Tensor, packed: Tensor, *, out: Tensor | None = None) -> Tensor:
        rows = torch.empty(len(tokens), k, dtype=dtype) if out is None or out.stride(-1) != 1 else out
        task.ids, task.packed, task.coding.scales = tokens.data_ptr(), packed.data_ptr(), packed.data_ptr() + scales_at
        task.out, task.out_stride, task.m = rows.data_ptr(), rows.stride(0), len(tokens)
        native.tessera_cpu_look_up_packed(kind, task)
        return rows if out is None or out is rows else out.copy_(rows)

    return look_up
