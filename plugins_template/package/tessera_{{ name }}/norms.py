"""RMS norms, alone and after the residual was added."""

from __future__ import annotations

from typing import Any

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
        return "not written yet"

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            """x [..., n], weight [n] -> [..., n]."""
            raise NotImplementedError

        return rms_norm
