"""The gated MLP as one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera.platform import BoundOps, Device, GatedMLPSpec, Kernel, Packed, Reason


class GatedMLP(Kernel[GatedMLPSpec]):
    def supports(self, spec: GatedMLPSpec) -> Reason | None:
        return "not written yet"

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> Any:
        def gated_mlp(x: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None) -> Tensor:
            """x [T, k] -> [T, n]."""
            raise NotImplementedError

        return gated_mlp
