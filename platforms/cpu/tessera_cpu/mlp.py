"""The gated MLP: the gate inside the first product where it is native; in stretches of rows, so that what is between
its two products stays in the cache (of a prompt of thousands of tokens it is many times as large)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, GatedMLPSpec, Kernel, Packed, Reason
from tessera_cpu.linear import products_of
from tessera_cpu.products import PANEL, Product
from tessera_cpu.quantized import Activations

BETWEEN = 16 << 20  # bytes of what the first product gives in one stretch
ROWS = 64  # a stretch has a multiple of them
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}  # enum Activation of csrc/kernels.h


class GatedMLP(Kernel[GatedMLPSpec]):
    def __init__(self, activations: Activations) -> None:
        self.activations = activations

    def supports(self, spec: GatedMLPSpec) -> Reason | None:
        return None

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> Any:
        first, down = self._first(spec, ops), ops.bind("linear", spec.down)
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

    def _first(self, spec: GatedMLPSpec, ops: BoundOps) -> Any:
        """(x, packed gate and up) -> activation(gate) * up."""
        gated = self._gated(spec)
        if gated is not None:
            return lambda x, packed: gated(x, packed["weight"])
        gate_up, gate = ops.bind("linear", spec.gate_up), ops.bind("gate", spec.gate)
        return lambda x, packed: gate(gate_up(x, packed))

    def _gated(self, spec: GatedMLPSpec) -> Product | None:
        """The gate inside the first product."""
        wide, inner, activation = spec.gate_up, spec.gate.n, ACTIVATIONS.get(spec.gate.activation)
        found = products_of(wide, self.activations)
        if wide.bias or inner % PANEL or activation is None or isinstance(found, str):
            return None
        return found.bind_gated(inner, wide.k, activation)


def stretch(spec: GatedMLPSpec) -> int:
    """Rows."""
    dtype: torch.dtype = getattr(torch, spec.gate_up.dtype)
    return max(BETWEEN // (spec.gate_up.n * dtype.itemsize) // ROWS * ROWS, ROWS)
