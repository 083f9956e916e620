"""The gated MLP: the gate inside the first product where it is native; in stretches of rows, so that what is between
its two products stays in the cache (of a prompt of thousands of tokens it is many times as large)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, GatedMLPSpec, Kernel, Packed
from tessera_cpu.native import BF16, library
from tessera_cpu.products import NativeProducts, NativeTask, rows_apart

BETWEEN = 16 << 20  # bytes of what the first product gives in one stretch
ROWS = 64  # a stretch has a multiple of them
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}  # enum Activation of csrc/kernels.h


class GatedMLP(Kernel[GatedMLPSpec]):
    def supports(self, spec: GatedMLPSpec) -> str | None:
        return None if spec.gate_up.scheme is None and spec.down.scheme is None else "no quantized weights"

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> Any:
        first, down = _first(spec, ops), ops.bind("linear", spec.down)
        rows = stretch(spec)

        def gated_mlp(x: Tensor, wide: Packed, back: Packed, *, out: Tensor | None = None) -> Tensor:
            if len(x) <= rows:
                return down(first(x, wide), back, out=out)
            result = x.new_empty(len(x), spec.down.n) if out is None else out
            for start in range(0, len(x), rows):
                some = slice(start, start + rows)
                down(first(x[some], wide), back, out=result[some])
            return result

        return gated_mlp


def _first(spec: GatedMLPSpec, ops: BoundOps) -> Any:
    """(x, packed gate and up) -> activation(gate) * up."""
    native, wide, inner = library(), spec.gate_up, spec.gate.n
    fits = not wide.bias and inner % NativeProducts.PANEL == 0 and spec.gate.activation in ACTIVATIONS
    if native is None or wide.dtype != "bfloat16" or not fits:
        gate_up, gate = ops.bind("linear", wide), ops.bind("gate", spec.gate)
        return lambda x, packed: gate(gate_up(x, packed))
    call = native.tessera_cpu_gate_up
    task = NativeTask(n=inner, k=wide.k, activation=ACTIVATIONS[spec.gate.activation])

    def gated(x: Tensor, packed: Packed) -> Tensor:
        x = rows_apart(x)
        out = x.new_empty(len(x), inner)
        call(BF16, task.of(x, packed["weight"], out))
        return out

    return gated


def stretch(spec: GatedMLPSpec) -> int:
    """Rows."""
    dtype: torch.dtype = getattr(torch, spec.gate_up.dtype)
    return max(BETWEEN // (spec.gate_up.n * dtype.itemsize) // ROWS * ROWS, ROWS)
