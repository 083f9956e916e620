"""Products with weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed, Reason


class Linear(Kernel[LinearSpec]):
    def supports(self, spec: LinearSpec) -> Reason | None:
        return "not written yet"

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            """x [T, k], weight {"weight": [n, k], "bias": [n]} -> [T, n]."""
            raise NotImplementedError

        return linear
