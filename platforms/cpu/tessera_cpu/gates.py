"""Activations, and gates with them or with sigmoids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    ActivationSpec,
    BoundOps,
    ClampedGateSpec,
    Device,
    GateSpec,
    Kernel,
    Reason,
    SigmoidGateSpec,
)
from tessera_cpu import native
from tessera_cpu.output import into
from tessera_cpu.products import result_of, row_kernel, rows_apart

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_quick": lambda x: x.float().mul(x.float().mul(1.702).sigmoid_()).to(x.dtype),
        "relu": F.relu,
        "relu2": lambda x: F.relu(x).square_(),
    }
)
"""Where no native kernel computes them."""


class Gate(Kernel[GateSpec]):
    def supports(self, spec: GateSpec) -> str | None:
        return "emits no quantised activations" if spec.emit is not None else None

    def batch_invariant(self, spec: GateSpec) -> Reason | None:
        return native.varying_entries(spec.dtype)

    def bind(self, spec: GateSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is not None and spec.dtype in native.ENTRIES:
            return row_kernel(library.tessera_cpu_gate, gate_task(spec))
        function = activated(spec)

        def gate(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            return into(function(x), out)

        return gate


def gate_task(spec: GateSpec | ClampedGateSpec | ActivationSpec) -> native.Gate:
    """What a call does not change: all but the addresses and the number of rows. An activation alone has no gate."""
    number = native.ENTRIES[spec.dtype]
    if isinstance(spec, ClampedGateSpec):
        silu = native.ACTIVATIONS["silu"]
        return native.Gate(n=spec.n, slope=spec.slope, limit=spec.limit, offset=1.0, activation=silu, number=number)
    activation = native.ACTIVATIONS[spec.activation]
    return native.Gate(n=spec.n, slope=1.0, limit=torch.inf, offset=0.0, activation=activation, number=number)


def activated(spec: GateSpec | ClampedGateSpec | ActivationSpec) -> Callable[[Tensor], Tensor]:
    """The same with torch: [T, 2n], or [T, n] without a gate, -> [T, n]."""
    if isinstance(spec, ClampedGateSpec):
        limit, slope = spec.limit, spec.slope

        def clamped(x: Tensor) -> Tensor:
            left, right = x.float().chunk(2, dim=-1)
            left, right = left.clamp(max=limit), right.clamp(-limit, limit)
            return left.mul(left.mul(slope).sigmoid_()).mul_(right + 1.0).to(x.dtype)

        return clamped
    activation = ACTIVATIONS[spec.activation]
    if isinstance(spec, ActivationSpec):
        return activation

    def gated(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return activation(left).mul_(right)

    return gated


class Activation(Kernel[ActivationSpec]):
    def supports(self, spec: ActivationSpec) -> None:
        return None

    def batch_invariant(self, spec: ActivationSpec) -> Reason | None:
        return native.varying_entries(spec.dtype)

    def bind(self, spec: ActivationSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is not None and spec.dtype in native.ENTRIES and spec.activation in native.ACTIVATIONS:
            number = native.ENTRIES[spec.dtype]
            task = native.Activate(n=spec.n, activation=native.ACTIVATIONS[spec.activation], number=number)
            return row_kernel(library.tessera_cpu_activate, task)
        function = activated(spec)

        def activation(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            return into(function(x), out)

        return activation


class SigmoidGate(Kernel[SigmoidGateSpec]):
    def supports(self, spec: SigmoidGateSpec) -> Reason | None:
        if native.library() is None or spec.dtype not in native.ENTRIES:
            return "only the native kernels multiply by sigmoids, in bfloat16 and float32"
        return None

    def batch_invariant(self, spec: SigmoidGateSpec) -> None:
        return None

    def bind(self, spec: SigmoidGateSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        task = native.SigmoidGate(n=spec.n, gates=spec.gates, number=native.ENTRIES[spec.dtype])

        def sigmoid_gate(x: Tensor, gate: Tensor, *, out: Tensor | None = None) -> Tensor:
            x, gate = rows_apart(x), rows_apart(gate)
            result = result_of(len(x), spec.n, out, x.dtype)
            task.x, task.x_stride, task.rows = x.data_ptr(), x.stride(0), len(x)
            task.gate, task.gate_stride = gate.data_ptr(), gate.stride(0)
            task.out, task.out_stride = result.data_ptr(), result.stride(0)
            library.tessera_cpu_sigmoid_gate(task)
            return result if out is None or out is result else out.copy_(result)

        return sigmoid_gate
