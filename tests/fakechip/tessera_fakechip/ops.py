"""Kernels of the chip's own, each better than core's reference at something."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, NormSpec, OpSet, Packed, replace


class Linear(Kernel[LinearSpec]):
    """x W^T + b, the weight kept as the chip multiplies it: [k, n]."""

    def supports(self, spec: LinearSpec) -> str | None:
        if spec.scheme is not None:
            return "no quantized weights"
        return "no products of experts" if spec.experts else None

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        return super().prepare(spec, {**raw, "weight": raw["weight"].T.contiguous()}, into)

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            return torch.mm(x, weight["weight"], out=out)

        def biased(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            return torch.addmm(weight["bias"], x, weight["weight"], out=out)

        return biased if spec.bias else linear


class RmsNorm(Kernel[NormSpec]):
    """In float32, in place of one copy, rounded once."""

    def supports(self, spec: NormSpec) -> str | None:
        return None if spec.emit is None else "emits no quantised activations"

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            wide = x.to(torch.float32, copy=True)
            root = wide.square().mean(-1, keepdim=True).add_(spec.eps).rsqrt_()
            normed = wide.mul_(root).mul_(weight.float() + spec.offset).to(x.dtype)
            return normed if out is None else out.copy_(normed)

        return rms_norm


def kernels(reference: OpSet) -> OpSet:
    """The reference with the chip's kernels in it."""
    return replace(reference, linear=Linear(), rms_norm=RmsNorm())
