"""RMS norms, alone and after the residual was added."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import AddNormSpec, BoundOps, Device, Kernel, NormSpec, Reason


class AddNorm(Kernel[AddNormSpec]):
    def supports(self, spec: AddNormSpec) -> Reason | None:
        return "not written yet"

    def bind(self, spec: AddNormSpec, ops: BoundOps, device: Device) -> Any:
        def add_norm(x: Tensor, residual: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
            """x, residual [T, n], weight [n] -> (normed, x + residual)."""
            raise NotImplementedError

        return add_norm


class RMSNorm(Kernel[NormSpec]):
    def supports(self, spec: NormSpec) -> Reason | None:
        return None if spec.emit is None else "emits no quantised activations"

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            """x [..., n], weight [n] -> [..., n], in float32 and rounded once."""
            wide = x.to(torch.float32, copy=True)
            root = wide.square().mean(-1, keepdim=True).add_(spec.eps).rsqrt_()
            normed = wide.mul_(root).mul_(weight.float() + spec.offset).to(x.dtype)
            return normed if out is None else out.copy_(normed)

        return rms_norm
