"""The gated MLP in stretches of rows, so that what is between its two products stays in the cache: of a prompt of
thousands of tokens it is many times as large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, GatedMLPSpec, Kernel, Packed

BETWEEN = 16 << 20  # bytes of what the first product gives in one stretch
ROWS = 64  # a stretch has a multiple of them


class GatedMLP(Kernel[GatedMLPSpec]):
    def supports(self, spec: GatedMLPSpec) -> str | None:
        return None if spec.gate_up.scheme is None and spec.down.scheme is None else "no quantized weights"

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> Any:
        gate_up, down = ops.bind("linear", spec.gate_up), ops.bind("linear", spec.down)
        gate = ops.bind("gate", spec.gate)
        rows = stretch(spec)

        def gated_mlp(x: Tensor, wide: Packed, back: Packed, *, out: Tensor | None = None) -> Tensor:
            if len(x) <= rows:
                return down(gate(gate_up(x, wide)), back, out=out)
            result = x.new_empty(len(x), spec.down.n) if out is None else out
            for first in range(0, len(x), rows):
                some = slice(first, first + rows)
                down(gate(gate_up(x[some], wide)), back, out=result[some])
            return result

        return gated_mlp


def stretch(spec: GatedMLPSpec) -> int:
    """Rows."""
    dtype: torch.dtype = getattr(torch, spec.gate_up.dtype)
    return max(BETWEEN // (spec.gate_up.n * dtype.itemsize) // ROWS * ROWS, ROWS)
