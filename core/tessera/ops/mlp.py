"""Elementwise ops (activations, gates, sums, soft caps), and MLPs.

Activations, gates and caps compute in float32 and round once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.ops.linear import LinearSpec, linear_inputs
from tessera.ops.quantize import EMITTED, INT8, INT8_WITH_SUMS, Activation, QuantizeSpec, quantize
from tessera.ops.tensors import DTYPES, HIDDEN, LARGE_VOCAB, ROUNDED_ONCE, VOCAB, WIDE, into, torch_dtype
from tessera.platform.ops import BoundOps, HotCall, Op, Packed, TrialInputs
from tessera.platform.quantization import ActSpec

__all__ = ["ActivationSpec", "AddSpec", "GateSpec", "GatedMLPSpec", "MLPSpec", "SigmoidGateSpec", "SoftCapSpec"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
_UNGATED = {
    **_ACTIVATIONS,
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


# ---- gate


@dataclass(frozen=True)
class GateSpec:
    """act(x[:, :n]) * x[:, n:]. activation: "silu", "gelu" or "gelu_tanh". emit: as in
    NormSpec."""

    n: int
    dtype: str
    activation: str = "silu"
    emit: ActSpec | None = None

    def emitting(self, emit: ActSpec) -> GateSpec:
        return dataclasses.replace(self, emit=emit)


def gate(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Activation:
    """x [T, 2n] act -> [T, n] act, or Quantized

    act(x[:, :n]) * x[:, n:]; Quantized if spec.emit is set."""
    left, right = x.chunk(2, dim=-1)
    result = _ACTIVATIONS[spec.activation](left.float()) * right.float()
    if spec.emit is not None:
        return quantize(QuantizeSpec(spec.n, spec.dtype, spec.emit), result)
    return into(result.to(x.dtype), out)


def _gates() -> Iterator[GateSpec]:
    for dtype in DTYPES:
        for name in _ACTIVATIONS:
            yield GateSpec(44, dtype, name)


def _large_gates() -> Iterator[tuple[GateSpec, int]]:
    for dtype in DTYPES:
        for n in (1024, 8200):
            yield GateSpec(n, dtype), 3
        yield GateSpec(2056, dtype, emit=INT8), 3
        for emit in (*EMITTED, INT8_WITH_SUMS):
            yield GateSpec(48, dtype, "gelu_tanh", emit), 19


def _gate_inputs(spec: GateSpec, make: TrialInputs) -> tuple[Any, ...]:
    return (_far_from_zero(make.normal(make.tokens, 2 * spec.n), spec.n, spec.dtype),)


def _far_from_zero(x: Tensor, n: int, dtype: str) -> Tensor:
    """In some rows, exponents of what the activation takes, the first n elements, are out of range."""
    x[2::5, :n] *= 50
    return x.to(torch_dtype(dtype))


# ---- activation


@dataclass(frozen=True)
class ActivationSpec:
    """act(x). activation: as in GateSpec, "relu", "relu2", or "gelu_quick", which is x * sigmoid(1.702 x), near the
    share of x that GELU keeps (Hendrycks and Gimpel, arXiv:1606.08415)."""

    n: int
    dtype: str
    activation: str


def activation(spec: ActivationSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [T, n] act -> [T, n] act"""
    return into(_UNGATED[spec.activation](x.float()).to(x.dtype), out)


def _activations() -> Iterator[ActivationSpec]:
    for dtype in DTYPES:
        for name in _UNGATED:
            yield ActivationSpec(44, dtype, name)


def _activation_inputs(spec: ActivationSpec, make: TrialInputs) -> tuple[Any, ...]:
    return (_far_from_zero(make.normal(make.tokens, spec.n), spec.n, spec.dtype),)


def _large_activations() -> Iterator[tuple[ActivationSpec, int]]:
    for dtype in DTYPES:
        for n in (1024, 8200):
            yield ActivationSpec(n, dtype, "gelu"), 3


# ---- add


@dataclass(frozen=True)
class AddSpec:
    """a + b, both [T, n] of `dtype`."""

    n: int
    dtype: str


def add(spec: AddSpec, a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """a [T, n] act; b [T, n] act -> [T, n] act"""
    return into(a + b, out)


def _add_inputs(spec: AddSpec, make: TrialInputs) -> tuple[Any, ...]:
    return tuple(make.normal(make.tokens, spec.n, dtype=spec.dtype) for _ in range(2))


# ---- sigmoid_gate


@dataclass(frozen=True)
class SigmoidGateSpec:
    """x * sigmoid(gate), in float32. gates: of each token; each is for n / gates elements, one after another."""

    n: int
    dtype: str
    gates: int


def sigmoid_gate(spec: SigmoidGateSpec, x: Tensor, gate: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [T, n] act; gate [T, gates] act -> [T, n] act

    Rows of both may lie apart in memory."""
    gated = x.float().unflatten(-1, (spec.gates, -1)) * gate.float().sigmoid()[..., None]
    return into(gated.flatten(-2).to(x.dtype), out)


def _sigmoid_gates() -> Iterator[SigmoidGateSpec]:
    for dtype in DTYPES:
        for gates in (44, 4, 1):
            yield SigmoidGateSpec(44, dtype, gates)


def _sigmoid_gate_inputs(spec: SigmoidGateSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Two slices of what a product returned, as attention's result and its gates are."""
    both = _far_from_zero(make.normal(make.tokens, spec.n + spec.gates), spec.gates, spec.dtype)
    return both[:, spec.gates :], both[:, : spec.gates]


# ---- soft_cap


@dataclass(frozen=True)
class SoftCapSpec:
    """x * scale, then tanh(x / cap) * cap, which is between -cap and cap; in float32. cap 0: no cap."""

    n: int
    dtype: str
    cap: float = 0.0
    scale: float = 1.0


def soft_cap(spec: SoftCapSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [T, n] act -> [T, n] act"""
    wide = x.float() * spec.scale
    if spec.cap:
        wide = torch.tanh(wide / spec.cap) * spec.cap
    return into(wide.to(x.dtype), out)


def _soft_caps() -> Iterator[SoftCapSpec]:
    for dtype in DTYPES:
        yield SoftCapSpec(40, dtype, cap=1.5)
        yield SoftCapSpec(40, dtype, scale=0.25)
        yield SoftCapSpec(40, dtype, cap=1.5, scale=2.0)


def _soft_cap_inputs(spec: SoftCapSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Some rows are so far beyond the cap that exponents of their elements are out of range."""
    x = make.normal(make.tokens, spec.n, scale=3.0)
    x[2::5] *= 500
    return (x.to(torch_dtype(spec.dtype)),)


def _large_soft_caps() -> Iterator[tuple[SoftCapSpec, int]]:
    for dtype in DTYPES:
        yield SoftCapSpec(LARGE_VOCAB, dtype, cap=1.5), 3


# ---- gated_mlp


@dataclass(frozen=True)
class GatedMLPSpec:
    """down(gate(gate_up(x))): gate_up gives [T, 2 n], the half for the activation first; gate gives [T, n],
    down [T, hidden]. If sharded over a group, each rank has a part of n, and its result is a partial sum."""

    gate_up: LinearSpec
    gate: GateSpec
    down: LinearSpec


def gated_mlp(spec: GatedMLPSpec, ops: BoundOps) -> HotCall:
    """x [T, k] act or Quantized; gate_up_weight Packed, [2n, k]; down_weight Packed, [k, n] -> [T, k] act"""
    gate_up = ops.bind("linear", spec.gate_up)
    act = ops.bind_emitting("gate", spec.gate, ops.wants("linear", spec.down))
    down = ops.bind("linear", spec.down)

    def call(x: Activation, gate_up_weight: Packed, down_weight: Packed, *, out: Tensor | None = None) -> Any:
        return down(act(gate_up(x, gate_up_weight)), down_weight, out=out)

    return call


def _gated_mlps() -> Iterator[GatedMLPSpec]:
    for dtype in DTYPES:
        yield GatedMLPSpec(LinearSpec(88, 40, dtype), GateSpec(44, dtype), LinearSpec(40, 44, dtype))


def _large_gated_mlps() -> Iterator[tuple[GatedMLPSpec, int]]:
    """Other activations, and inner sizes at which kernels change their path."""
    for dtype in DTYPES:
        for n, k, activation in ((44, 40, "gelu"), (44, 40, "gelu_tanh"), (1088, 64, "silu")):
            yield GatedMLPSpec(LinearSpec(2 * n, k, dtype), GateSpec(n, dtype, activation), LinearSpec(k, n, dtype)), 19


def _gated_mlp_inputs(spec: GatedMLPSpec, make: TrialInputs) -> tuple[Any, ...]:
    return *linear_inputs(spec.gate_up, make), make.weight(spec.down)


# ---- mlp


@dataclass(frozen=True)
class MLPSpec:
    """down(activation(up(x))), sharded as GatedMLPSpec is."""

    up: LinearSpec
    activation: ActivationSpec
    down: LinearSpec


def mlp(spec: MLPSpec, ops: BoundOps) -> HotCall:
    """x [T, k] act or Quantized; up_weight Packed, [n, k]; down_weight Packed, [k, n] -> [T, k] act"""
    up = ops.bind("linear", spec.up)
    act = ops.bind("activation", spec.activation)
    down = ops.bind("linear", spec.down)

    def call(x: Activation, up_weight: Packed, down_weight: Packed, *, out: Tensor | None = None) -> Any:
        return down(act(up(x, up_weight)), down_weight, out=out)

    return call


def _mlps() -> Iterator[MLPSpec]:
    for dtype in DTYPES:
        yield MLPSpec(
            LinearSpec(44, 40, dtype, bias=True), ActivationSpec(44, dtype, "gelu"), LinearSpec(40, 44, dtype)
        )


def _large_mlps() -> Iterator[tuple[MLPSpec, int]]:
    for dtype in DTYPES:
        for n, k, activation in ((44, 40, "silu"), (44, 40, "gelu_tanh"), (1088, 64, "gelu")):
            up, down = LinearSpec(n, k, dtype, bias=True), LinearSpec(k, n, dtype, bias=True)
            yield MLPSpec(up, ActivationSpec(n, dtype, activation), down), 19


def _mlp_inputs(spec: MLPSpec, make: TrialInputs) -> tuple[Any, ...]:
    return *linear_inputs(spec.up, make), make.weight(spec.down)


OPS = (
    Op(
        "gate", "core", gate,
        sample_specs=_gates, large_samples=_large_gates, inputs=_gate_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: GateSpec(WIDE, dtype),
    ),
    Op(
        "activation", "core", activation,
        sample_specs=_activations, large_samples=_large_activations,
        inputs=_activation_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: ActivationSpec(WIDE, dtype, "gelu"),
    ),
    Op(
        "add", "core", add,
        sample_specs=lambda: (AddSpec(40, dtype) for dtype in DTYPES), inputs=_add_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: AddSpec(HIDDEN, dtype),
    ),
    Op(
        "sigmoid_gate", "core", sigmoid_gate,
        sample_specs=_sigmoid_gates, inputs=_sigmoid_gate_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: SigmoidGateSpec(HIDDEN, dtype, HIDDEN),
    ),
    Op(
        "soft_cap", "core", soft_cap,
        sample_specs=_soft_caps, large_samples=_large_soft_caps, inputs=_soft_cap_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: SoftCapSpec(VOCAB, dtype, cap=30.0),
    ),
    Op(
        "gated_mlp", "core", compose=gated_mlp, parts=("linear", "gate"),
        takes_by=lambda spec: (("linear", spec.gate_up),),
        sample_specs=_gated_mlps, large_samples=_large_gated_mlps, inputs=_gated_mlp_inputs,
        served_spec=lambda dtype: GatedMLPSpec(
            LinearSpec(2 * WIDE, HIDDEN, dtype), GateSpec(WIDE, dtype), LinearSpec(HIDDEN, WIDE, dtype)
        ),
    ),
    Op(
        "mlp", "core", compose=mlp, parts=("linear", "activation"),
        sample_specs=_mlps, large_samples=_large_mlps, inputs=_mlp_inputs,
        served_spec=lambda dtype: MLPSpec(
            LinearSpec(WIDE, HIDDEN, dtype), ActivationSpec(WIDE, dtype, "gelu"), LinearSpec(HIDDEN, WIDE, dtype)
        ),
    ),
)  # fmt: skip
