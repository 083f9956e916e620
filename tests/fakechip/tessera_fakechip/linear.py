"""Products with weights, which are kept as the chip multiplies them: [k, n]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed, Reason


class Linear(Kernel[LinearSpec]):
    def supports(self, spec: LinearSpec) -> Reason | None:
        if spec.scheme is not None:
            return "no quantized weights"
        return "no products of experts" if spec.experts else None

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        return super().prepare(spec, {**raw, "weight": raw["weight"].T.contiguous()}, into)

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            """x [T, k], weight {"weight": [k, n], "bias": [n]} -> [T, n]."""
            if spec.bias:
                return torch.addmm(weight["bias"], x, weight["weight"], out=out)
            return torch.mm(x, weight["weight"], out=out)

        return linear
