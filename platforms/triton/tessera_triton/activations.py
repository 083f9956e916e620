"""Elementwise ops: activations, gates that may quantize their result, sums and soft caps. One program computes a
stretch of a row in float32 and rounds once; where it quantizes, a whole row, which it holds in registers.

tanh and both GELUs are written with exp and erf alone, which every target and the interpreter have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import (
    ActivationSpec,
    ActSpec,
    AddSpec,
    BoundOps,
    Device,
    GateSpec,
    Kernel,
    Quantized,
    SoftCapSpec,
)
from tessera_triton.emission import emitted, why_not_emitted
from tessera_triton.exact import rounded_whole
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two

_STRETCH = 2048  # elements that a program computes where it does not quantize
_PER_WARP = 512  # elements


@triton.jit
def _tanh(x):
    """Near 0 by its series, where the other form would lose the digits of small numbers."""
    near = tl.abs(x) < 0.25
    small = tl.where(near, x, 0.0)
    square = small * small
    rest = 0.13333333 + square * (-0.053968254 + square * 0.021869488)
    series = small * (1.0 + square * (-0.33333333 + square * rest))
    shrinks = tl.exp(-2.0 * tl.abs(x))
    magnitude = (1.0 - shrinks) / (1.0 + shrinks)
    return tl.where(near, series, tl.where(x < 0, -magnitude, magnitude))


_KINDS = ("silu", "gelu", "gelu_tanh")


@triton.jit
def _activated(x, HOW: tl.constexpr):
    """x in float32. The logistic function has the exp of a number that is not positive, which cannot overflow."""
    if HOW == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        # gelu_tanh: 0.5 * (1 + tanh(u)) is the logistic function of 2 u.
        u = x if HOW == "silu" else 1.5957691216057308 * (x + 0.044715 * x * x * x)
        shrinks = tl.exp(-tl.abs(u))
        return x * tl.where(u < 0, shrinks, 1.0) / (1.0 + shrinks)


@triton.jit
def _elements(
    x, x_stride, other, other_stride, out, out_stride, scales, n, cap, scale, limit,
    HOW: tl.constexpr, GATES: tl.constexpr, CAPS: tl.constexpr, QUANTIZES: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """HOW: "add" for x + other, "scale" for x * scale, with CAPS capped softly, or an activation of x, with GATES times
    other. QUANTIZES: as in norms."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HOW == "add":
        value += tl.load(other + row * other_stride + column, mask=inside, other=0.0).to(tl.float32)
    elif HOW == "scale":
        value *= scale
        if CAPS:
            value = _tanh(value / cap) * cap
    else:
        value = _activated(value, HOW)
        if GATES:
            value *= tl.load(other + row * other_stride + column, mask=inside, other=0.0).to(tl.float32)
    if QUANTIZES:
        step = tl.maximum(tl.max(tl.where(inside, tl.abs(value), 0.0), 0), 1e-12) / limit
        tl.store(scales + row, step)
        value = value / step
        if WHOLE:
            value = rounded_whole(value)
        value = tl.minimum(tl.maximum(value, -limit), limit)
    tl.store(out + row * out_stride + column, value.to(out.dtype.element_ty), mask=inside)


def rows_of(x: Tensor, n: int) -> Tensor:
    """[..., n] -> [T, n], with the elements of a row next to each other."""
    rows = x.reshape(-1, n)
    return rows if rows.stride(-1) == 1 else rows.contiguous()


@dataclass(frozen=True)
class Elements:
    """Launches _elements for one width. how: as HOW."""

    launch: Launcher
    n: int
    how: str
    cap: float = 0.0
    scale: float = 1.0
    emit: ActSpec | None = None

    def __call__(self, x: Tensor, other: Tensor | None, out: Tensor | None, *, gates: bool = False) -> Any:
        """x, other [T, n], rows apart -> [T, n], Quantized if emit says so."""
        dtype, limit = emitted(x, self.emit)
        second = x if other is None else other
        if out is None or not out.is_contiguous():
            made = torch.empty(x.shape, dtype=dtype, device=x.device)
        else:
            made = out
        flat = made.view(-1, self.n)
        scales = flat if self.emit is None else torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
        if len(x):
            whole = power_of_two(self.n)
            block = whole if self.emit is not None else min(whole, _STRETCH)
            self.launch(
                _elements, (len(x), triton.cdiv(self.n, block)), x, x.stride(0), second, second.stride(0), flat,
                flat.stride(0), scales, self.n, self.cap, self.scale, limit,
                HOW=self.how, GATES=gates, CAPS=bool(self.cap), QUANTIZES=self.emit is not None,
                WHOLE=dtype is torch.int8, BLOCK=block, num_warps=min(max(block // _PER_WARP, 1), 16),
            )  # fmt: skip
        if self.emit is not None:
            return Quantized(made, scales)
        return made if out is None or made is out else out.copy_(made)


@dataclass(frozen=True)
class Gate(Kernel[GateSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: GateSpec) -> str | None:
        return None if spec.emit is None else why_not_emitted(spec.n, spec.emit, self.facts)

    def bind(self, spec: GateSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        elements = Elements(self.launch, spec.n, spec.activation, emit=spec.emit)

        def gate(x: Tensor, *, out: Tensor | None = None) -> Any:
            left, right = rows_of(x, 2 * spec.n).chunk(2, dim=-1)
            return elements(left, right, out, gates=True)

        return gate


@dataclass(frozen=True)
class Activation(Kernel[ActivationSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: ActivationSpec) -> str | None:
        return None if spec.activation in _KINDS else f"no {spec.activation}"

    def bind(self, spec: ActivationSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        elements = Elements(self.launch, spec.n, spec.activation)

        def activation(x: Tensor, *, out: Tensor | None = None) -> Any:
            return elements(rows_of(x, spec.n), None, out)

        return activation


@dataclass(frozen=True)
class Add(Kernel[AddSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: AddSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        elements = Elements(self.launch, spec.n, "add")

        def add(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Any:
            return elements(rows_of(a, spec.n), rows_of(b, spec.n), out)

        return add


@dataclass(frozen=True)
class SoftCap(Kernel[SoftCapSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: SoftCapSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        elements = Elements(self.launch, spec.n, "scale", spec.cap, spec.scale)

        def soft_cap(x: Tensor, *, out: Tensor | None = None) -> Any:
            return elements(rows_of(x, spec.n), None, out)

        return soft_cap
