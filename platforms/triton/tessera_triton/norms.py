"""RMS norm and layer norm, also with the residual added, and quantizing the result. One program computes one row, in
float32, and holds it in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import (
    ActSpec,
    AddLayerNormSpec,
    AddNormSpec,
    BoundOps,
    Device,
    Kernel,
    LayerNormSpec,
    NormSpec,
    Quantized,
)
from tessera_triton.emission import emitted, why_not_emitted
from tessera_triton.exact import rounded_whole
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two


@triton.jit
def _norm_rows(
    x, x_stride, residual, residual_stride, weight, bias, out, out_stride, total, total_stride, scales,
    n, eps, offset, multiplier, limit,
    BLOCK: tl.constexpr, CENTRED: tl.constexpr, ADDS: tl.constexpr, SCALES: tl.constexpr, QUANTIZES: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """out = norm(x), or of x * multiplier + residual, which is written to total. CENTRED: layer norm. QUANTIZES: out
    has whole numbers or fp8, with a scale per row. WHOLE: the numbers are whole."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        if SCALES:
            value = (value * multiplier).to(x.dtype.element_ty).to(tl.float32)
        other = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        rounded = (value + other).to(total.dtype.element_ty)
        tl.store(total + row * total_stride + column, rounded, mask=inside)
        value = tl.where(inside, rounded.to(tl.float32), 0.0)
    if CENTRED:
        value = tl.where(inside, value - tl.sum(value, 0) / n, 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(value * value, 0) / n + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    result = value * factor * gain
    if CENTRED:
        result += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if QUANTIZES:
        scale = tl.maximum(tl.max(tl.where(inside, tl.abs(result), 0.0), 0), 1e-12) / limit
        tl.store(scales + row, scale)
        result = result / scale
        if WHOLE:
            result = rounded_whole(result)
        result = tl.minimum(tl.maximum(result, -limit), limit)
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Rows:
    """Launches _norm_rows for one width and dtype."""

    launch: Launcher
    n: int
    eps: float
    offset: float = 0.0
    centred: bool = False
    emit: ActSpec | None = None

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None,
        residual: Tensor | None = None, multiplier: float = 1.0,
    ) -> tuple[Any, Tensor]:  # fmt: skip
        """x, residual [..., n] -> the normed rows, Quantized if emit says so; and x * multiplier + residual, or x."""
        rows = x.reshape(-1, self.n)
        dtype, limit = emitted(x, self.emit)
        if out is None or not out.is_contiguous():
            made = torch.empty(x.shape, dtype=dtype, device=x.device)
        else:
            made = out
        flat = made.view(-1, self.n)
        adds = residual is not None
        other = residual.reshape(-1, self.n) if residual is not None else rows
        total = torch.empty_like(x, memory_format=torch.contiguous_format) if adds else x
        sums = total.reshape(-1, self.n)
        scales = flat if self.emit is None else torch.empty(len(rows), 1, dtype=torch.float32, device=x.device)
        if len(rows):
            block = power_of_two(self.n)
            self.launch(
                _norm_rows, (len(rows),), rows, rows.stride(0), other, other.stride(0), weight,
                weight if bias is None else bias, flat, flat.stride(0), sums, sums.stride(0), scales,
                self.n, self.eps, self.offset, multiplier, limit,
                BLOCK=block, CENTRED=self.centred, ADDS=adds, SCALES=multiplier != 1.0, QUANTIZES=self.emit is not None,
                WHOLE=dtype is torch.int8, num_warps=min(max(block // 512, 1), 16),
            )  # fmt: skip
        if self.emit is not None:
            return Quantized(made, scales), total
        return made if out is None or made is out else out.copy_(made), total


@dataclass(frozen=True)
class RMSNorm(Kernel[NormSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: NormSpec) -> str | None:
        return why_not_emitted(spec.n, spec.emit, self.facts)

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        rows = Rows(self.launch, spec.n, spec.eps, spec.offset, emit=spec.emit)

        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
            return rows(x, weight, None, out)[0]

        return rms_norm


@dataclass(frozen=True)
class LayerNorm(Kernel[LayerNormSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: LayerNormSpec) -> str | None:
        return why_not_emitted(spec.n, None, self.facts)

    def bind(self, spec: LayerNormSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        rows = Rows(self.launch, spec.n, spec.eps, centred=True)

        def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Any:
            return rows(x, weight, bias, out)[0]

        return layer_norm


@dataclass(frozen=True)
class AddNorm(Kernel[AddNormSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: AddNormSpec) -> str | None:
        return why_not_emitted(spec.norm.n, spec.norm.emit, self.facts)

    def bind(self, spec: AddNormSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        norm = spec.norm
        rows = Rows(self.launch, norm.n, norm.eps, norm.offset, emit=norm.emit)
        group = ops.groups[spec.reduce] if spec.reduce is not None else None

        def add_norm(x: Tensor, residual: Tensor | None, weight: Tensor, *, out: Tensor | None = None) -> Any:
            whole = x if group is None else group.all_reduce(x)
            return rows(whole, weight, None, out, residual, spec.multiplier)

        return add_norm


@dataclass(frozen=True)
class AddLayerNorm(Kernel[AddLayerNormSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: AddLayerNormSpec) -> str | None:
        return why_not_emitted(spec.norm.n, None, self.facts)

    def bind(self, spec: AddLayerNormSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        rows = Rows(self.launch, spec.norm.n, spec.norm.eps, centred=True)
        group = ops.groups[spec.reduce] if spec.reduce is not None else None

        def add_layer_norm(
            x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, *, out: Tensor | None = None
        ) -> Any:
            whole = x if group is None else group.all_reduce(x)
            return rows(whole, weight, bias, out, residual)

        return add_layer_norm
