"""Quantizing activations: int8 or fp8, with a scale for each token or each group of its elements, or with a scale that
is given. One program reads a token's elements twice, the second time from a cache, or a few of its groups once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import ActSpec, BoundOps, Device, Kernel, Quantized, QuantizeSpec
from tessera_triton.emission import GROUPED, NARROW, why_not_quantized
from tessera_triton.exact import rounded_whole
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two

_AT_ONCE = 8192  # elements of a row that a program holds in registers


@triton.jit
def _narrowed(value, scale, lowest, highest, WHOLE: tl.constexpr):
    """value / scale, clamped to a range and, if its numbers are whole, rounded."""
    value = tl.minimum(tl.maximum(tl.div_rn(value, scale), lowest), highest)
    if WHOLE:
        value = rounded_whole(value)
    return value


@triton.jit
def _quantize_rows(
    x, x_stride, data, scales, sums, n, lowest, highest,
    BLOCK: tl.constexpr, WHOLE: tl.constexpr, STATIC: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """A scale per row, or one that is STATIC. SUMS: elements whose sum is written to sums; 0 for none."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    if STATIC:
        scale = tl.load(scales)
    else:
        peak = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            value = tl.load(x + row * x_stride + start + column, mask=start + column < n, other=0.0).to(tl.float32)
            peak = tl.maximum(peak, tl.abs(value))
        scale = tl.div_rn(tl.maximum(tl.max(peak, 0), 1e-12), highest)
        tl.store(scales + row, scale)
    for start in range(0, n, BLOCK):
        inside = start + column < n
        value = tl.load(x + row * x_stride + start + column, mask=inside, other=0.0).to(tl.float32)
        value = _narrowed(value, scale, lowest, highest, WHOLE)
        tl.store(data + row * n + start + column, value.to(data.dtype.element_ty), mask=inside)
        if SUMS:
            total = tl.sum(tl.reshape(value.to(tl.int32), (BLOCK // SUMS, SUMS)), 1)
            place = start // SUMS + tl.arange(0, BLOCK // SUMS)
            tl.store(sums + row * (n // SUMS) + place, total, mask=place < n // SUMS)


@triton.jit
def _quantize_groups(
    x, x_stride, data, scales, n, groups, lowest, highest, BLOCK: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr
):
    """A scale per SIZE elements of a row. BLOCK: groups of a program."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = column < n
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(value), 1), 1e-12), highest)
    tl.store(scales + row * groups + group, scale, mask=group < groups)
    value = _narrowed(value, scale[:, None], lowest, highest, WHOLE)
    tl.store(data + row * n + column, value.to(data.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Quantizer:
    """x [T, n], rows apart or not -> Quantized, as `emit` says, which why_not_quantized() takes. static_scale: of a
    static activation, a single float32."""

    launch: Launcher
    n: int
    emit: ActSpec

    def __call__(self, x: Tensor, static_scale: Tensor | None = None) -> Quantized:
        emit, n, tokens = self.emit, self.n, len(x)
        x = x if x.stride(-1) == 1 else x.contiguous()
        dtype, lowest, highest = NARROW[emit.dtype]
        data = torch.empty(tokens, n, dtype=dtype, device=x.device)
        whole = dtype is torch.int8
        if emit.granularity == "group":
            groups = -(-n // emit.group)
            scales = torch.empty(tokens, groups, dtype=torch.float32, device=x.device)
            block = power_of_two(min(groups, GROUPED // emit.group))
            if tokens:
                self.launch(
                    _quantize_groups, (tokens, -(-groups // block)), x, x.stride(0), data, scales, n, groups, lowest,
                    highest, BLOCK=block, SIZE=emit.group, WHOLE=whole, num_warps=4,
                )  # fmt: skip
            return Quantized(data, scales, None, emit.group)
        made = torch.empty(tokens, 1, dtype=torch.float32, device=x.device) if static_scale is None else static_scale
        sums = torch.empty(tokens, n // emit.sums, dtype=torch.int32, device=x.device) if emit.sums else None
        block = max(min(power_of_two(n), _AT_ONCE), emit.sums)
        if tokens:
            self.launch(
                _quantize_rows, (tokens,), x, x.stride(0), data, made, data if sums is None else sums, n, lowest,
                highest, BLOCK=block, WHOLE=whole, STATIC=static_scale is not None, SUMS=emit.sums,
                num_warps=min(max(block // 512, 1), 16),
            )  # fmt: skip
        return Quantized(data, made if static_scale is None else static_scale.reshape(1), sums)


@dataclass(frozen=True)
class Quantize(Kernel[QuantizeSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: QuantizeSpec) -> str | None:
        return (
            "the scale of a static activation is a part of a weight"
            if spec.emit.static
            else why_not_quantized(spec.emit, self.facts)
        )

    def bind(self, spec: QuantizeSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        return Quantizer(self.launch, spec.n, spec.emit)
