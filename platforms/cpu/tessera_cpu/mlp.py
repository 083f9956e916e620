"""The gated MLP. The gate is fused into the first product if that is native. Rows are processed in chunks, so that the
intermediate result stays in the cache; for a prompt of thousands of tokens it would be many times as large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, BoundOps, Device, GatedMLPSpec, Kernel, Packed, Quantized, Reason
from tessera_cpu import native
from tessera_cpu.linear import products_of
from tessera_cpu.products import PANEL, Product

BETWEEN = 16 << 20  # bytes of the intermediate result of one chunk
ROWS = 64  # the number of rows in a chunk is a multiple of this


class GatedMLP(Kernel[GatedMLPSpec]):
    def supports(self, spec: GatedMLPSpec) -> Reason | None:
        return None

    def batch_invariant(self, spec: GatedMLPSpec) -> Reason | None:
        found = products_of(spec.gate_up)
        return None if isinstance(found, str) else found.varying()

    def wants(self, spec: GatedMLPSpec) -> ActSpec | None:
        found = products_of(spec.gate_up)
        return None if isinstance(found, str) else found.wants(spec.gate_up.k)

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> Any:
        first, down = self._first(spec, ops), ops.bind("linear", spec.down)
        rows, dtype = stretch(spec), getattr(torch, spec.down.dtype)

        def gated_mlp(x: Tensor | Quantized, wide: Packed, back: Packed, *, out: Tensor | None = None) -> Tensor:
            tokens = len(x[0] if isinstance(x, Quantized) else x)
            if tokens <= rows:
                return down(first(x, wide), back, out=out)
            result = torch.empty(tokens, spec.down.n, dtype=dtype) if out is None else out
            for start in range(0, tokens, rows):
                some = slice(start, start + rows)
                down(first(_part(x, some), wide), back, out=result[some])
            return result

        return gated_mlp

    def _first(self, spec: GatedMLPSpec, ops: BoundOps) -> Any:
        """(x, packed gate and up) -> activation(gate) * up."""
        gated = self._gated(spec, ops.wants("linear", spec.down), ops.batch_invariant)
        if gated is not None:
            return lambda x, packed: gated(x, packed["weight"])
        gate_up, gate = ops.bind("linear", spec.gate_up), ops.bind("gate", spec.gate)
        return lambda x, packed: gate(gate_up(x, packed))

    def _gated(self, spec: GatedMLPSpec, emit: ActSpec | None, in_order: bool) -> Product | None:
        """The first product with the gate fused in. emit: the quantization that the second product wants."""
        wide, inner, activation = spec.gate_up, spec.gate.n, native.ACTIVATIONS[spec.gate.activation]
        found = products_of(wide)
        if wide.bias or inner % PANEL or isinstance(found, str):
            return None
        return found.bind_gated(inner, wide.k, activation, emit, in_order=in_order)


def _part(x: Tensor | Quantized, rows: slice) -> Tensor | Quantized:
    if not isinstance(x, Quantized):
        return x[rows]
    assert x.sums is not None
    return x._replace(data=x.data[rows], scale=x.scale[rows], sums=x.sums[rows])


def stretch(spec: GatedMLPSpec) -> int:
    """The number of rows in a chunk."""
    dtype: torch.dtype = getattr(torch, spec.gate_up.dtype)
    return max(BETWEEN // (spec.gate_up.n * dtype.itemsize) // ROWS * ROWS, ROWS)
