"""Norms, alone and fused with what surrounds them: the residual, the sum over a group, the linear that follows.

They compute in float32 and round once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.ops.linear import LinearSpec, large_linears, linears
from tessera.ops.quantize import EMITTED, INT8, INT8_WITH_SUMS, Activation, QuantizeSpec, quantize
from tessera.ops.tensors import DTYPES, HIDDEN, ROUNDED_ONCE, into, largest, torch_dtype
from tessera.platform.ops import BoundOps, HotCall, Op, Packed, TrialInputs
from tessera.platform.quantization import ActSpec

__all__ = [
    "AddLayerNormSpec",
    "AddNormSpec",
    "LayerNormSpec",
    "NormAddSpec",
    "NormLinearSpec",
    "NormSpec",
    "QKNormSpec",
]


# ---- rms_norm


@dataclass(frozen=True)
class NormSpec:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * (weight + offset), in float32. emit:
    the result is Quantized in this way instead of a tensor, as the product that reads it wants (Kernel.wants); core
    asks for it where supports() takes such a spec. None: a tensor."""

    n: int
    dtype: str
    eps: float
    offset: float = 0.0
    emit: ActSpec | None = None

    def emitting(self, emit: ActSpec) -> NormSpec:
        return dataclasses.replace(self, emit=emit)


def rms_norm(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Activation:
    """x [..., n] act; weight [n] act -> [..., n] act, or Quantized

    Quantized if spec.emit is set. Root mean square layer normalization, arXiv:1910.07467."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + spec.eps) * (weight.float() + spec.offset)
    if spec.emit is not None:
        return quantize(QuantizeSpec(spec.n, spec.dtype, spec.emit), normed)
    return into(normed.to(x.dtype), out)


def _norms() -> Iterator[NormSpec]:
    for dtype in DTYPES:
        yield NormSpec(40, dtype, 1e-6)
        yield NormSpec(129, dtype, 1e-5, offset=1.0)
        yield NormSpec(520, dtype, 1e-2)  # reveals a sum in too few bits, because it is wide, and a wrong eps


def _rms_norms() -> Iterator[NormSpec]:
    yield from _norms()
    for dtype in DTYPES:
        yield NormSpec(_OF_A_HEAD, dtype, 1e-6)


def _emitting_norms() -> Iterator[tuple[NormSpec, int]]:
    for dtype in DTYPES:
        for emit in EMITTED:
            yield NormSpec(129, dtype, 1e-5, offset=1.0, emit=emit), 19
        yield NormSpec(40, dtype, 1e-6, emit=INT8_WITH_SUMS), 19


def _large_norms() -> Iterator[tuple[NormSpec, int]]:
    """Rows that one tile does not hold, and more rows than a grid may have: [1030, heads]."""
    for dtype in DTYPES:
        for n in (2048, 8200):
            yield NormSpec(n, dtype, 1e-6), 4


def _large_rms_norms() -> Iterator[tuple[NormSpec, int]]:
    yield from _large_norms()
    for dtype in DTYPES:
        yield NormSpec(_OF_A_HEAD, dtype, 1e-6), 260
        yield NormSpec(_OF_A_HEAD, dtype, 1e-6), _SINGLE_HEAD
        yield NormSpec(2056, dtype, 1e-6, emit=INT8), 4
    yield from _emitting_norms()


def _rms_norm_inputs(spec: NormSpec, make: TrialInputs) -> tuple[Any, ...]:
    return _activation(spec, make), make.normal(spec.n, dtype=spec.dtype)


_OF_A_HEAD = 24  # elements; norms of this size are tested on [T, heads, n]
_HEADS = 6
_SINGLE_HEAD = 7  # tokens, with which there is one head


def _activation(spec: NormSpec | LayerNormSpec, make: TrialInputs) -> Tensor:
    """[T, n] or [T, heads, n]. Every third row is near the limit of its dtype, so its squares exceed it; some are
    zeros, or so small that eps is larger than their squares."""
    heads = () if spec.n != _OF_A_HEAD else (1,) if make.tokens == _SINGLE_HEAD else (_HEADS,)
    x = make.normal(make.tokens, *heads, spec.n)
    x[1::3] *= largest(spec.n, spec.dtype)
    x[3::9] *= 1e-4
    x[6::9] = 0
    return x.to(torch_dtype(spec.dtype))


def _served_norm(dtype: str) -> NormSpec:
    return NormSpec(HIDDEN, dtype, 1e-6)


# ---- layer_norm


@dataclass(frozen=True)
class LayerNormSpec:
    """Layer norm over the last dimension: (x - mean) / sqrt(variance + eps) * weight + bias, in float32."""

    n: int
    dtype: str
    eps: float


def layer_norm(spec: LayerNormSpec, x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [..., n] act; weight [n] act; bias [n] act -> [..., n] act

    Layer normalization, arXiv:1607.06450."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + spec.eps)
    return into((normed * weight.float() + bias.float()).to(x.dtype), out)


def _layer_norms() -> Iterator[LayerNormSpec]:
    for dtype in DTYPES:
        yield LayerNormSpec(40, dtype, 1e-5)
        yield LayerNormSpec(129, dtype, 1e-5)
        yield LayerNormSpec(520, dtype, 1e-2)


def _layer_norms_of_heads() -> Iterator[LayerNormSpec]:
    yield from _layer_norms()
    for dtype in DTYPES:
        yield LayerNormSpec(_OF_A_HEAD, dtype, 1e-5)


def _large_layer_norms() -> Iterator[tuple[LayerNormSpec, int]]:
    for norm, tokens in _large_norms():
        yield LayerNormSpec(norm.n, norm.dtype, 1e-5), tokens


def _layer_norm_inputs(spec: LayerNormSpec, make: TrialInputs) -> tuple[Any, ...]:
    return _activation(spec, make), *(make.normal(spec.n, dtype=spec.dtype) for _ in range(2))


def _served_layer_norm(dtype: str) -> LayerNormSpec:
    return LayerNormSpec(HIDDEN, dtype, 1e-5)


# ---- add_norm


@dataclass(frozen=True)
class AddNormSpec:
    """Sums x over the group `reduce` (None: x is complete), multiplies it by `multiplier`, adds the residual and norms
    the result. Without a residual the multiplier is not applied."""

    norm: NormSpec
    reduce: str | None = None
    multiplier: float = 1.0

    def emitting(self, emit: ActSpec) -> AddNormSpec:
        return dataclasses.replace(self, norm=self.norm.emitting(emit))


def add_norm(spec: AddNormSpec, ops: BoundOps) -> HotCall:
    """x [T, n] act, summed over the group, times the multiplier; residual [T, n] act or None; weight [n] act -> normed
    [T, n] act or Quantized; x + residual [T, n] act"""
    norm = ops.bind("rms_norm", spec.norm)
    group = ops.groups[spec.reduce] if spec.reduce is not None else None

    def call(
        x: Tensor, residual: Tensor | None, weight: Tensor, *, out: Tensor | None = None
    ) -> tuple[Activation, Tensor]:
        whole = x if group is None else group.all_reduce(x)
        if residual is None:
            return norm(whole, weight, out=out), whole
        residual = (whole if spec.multiplier == 1.0 else whole * spec.multiplier) + residual
        return norm(residual, weight, out=out), residual

    return call


def _add_norms() -> Iterator[AddNormSpec]:
    for norm in _norms():
        yield AddNormSpec(norm)
        yield AddNormSpec(norm, multiplier=0.22)


def _large_add_norms() -> Iterator[tuple[AddNormSpec, int]]:
    for norm, tokens in (*_large_norms(), *_emitting_norms()):
        yield AddNormSpec(norm), tokens


def _add_norm_inputs(spec: AddNormSpec, make: TrialInputs) -> tuple[Any, ...]:
    residual, weight = _rms_norm_inputs(spec.norm, make)
    return make.normal(make.tokens, spec.norm.n, dtype=spec.norm.dtype), _after_the_first(residual, make), weight


def _after_the_first(residual: Tensor, make: TrialInputs) -> Tensor | None:
    """None with two tokens: the first norm of a model, or of a pipeline stage, has no residual."""
    return None if make.tokens == 2 else residual


# ---- add_layer_norm


@dataclass(frozen=True)
class AddLayerNormSpec:
    """Sums x over the group `reduce` (None: x is complete), adds the residual and norms the result."""

    norm: LayerNormSpec
    reduce: str | None = None


def add_layer_norm(spec: AddLayerNormSpec, ops: BoundOps) -> HotCall:
    """x [T, n] act, summed over the group; residual [T, n] act or None; weight [n] act; bias [n] act -> normed [T, n]
    act; x + residual [T, n] act"""
    norm = ops.bind("layer_norm", spec.norm)
    group = ops.groups[spec.reduce] if spec.reduce is not None else None

    def call(
        x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, *, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        whole = x if group is None else group.all_reduce(x)
        residual = whole if residual is None else whole + residual
        return norm(residual, weight, bias, out=out), residual

    return call


def _add_layer_norm_inputs(spec: AddLayerNormSpec, make: TrialInputs) -> tuple[Any, ...]:
    residual, *weights = _layer_norm_inputs(spec.norm, make)
    return make.normal(make.tokens, spec.norm.n, dtype=spec.norm.dtype), _after_the_first(residual, make), *weights


def _large_add_layer_norms() -> Iterator[tuple[AddLayerNormSpec, int]]:
    for norm, tokens in _large_layer_norms():
        yield AddLayerNormSpec(norm), tokens


# ---- norm_add


@dataclass(frozen=True)
class NormAddSpec:
    """Sums x over the group `reduce` (None: x is complete), norms it and adds it to the residual."""

    norm: NormSpec
    reduce: str | None = None


def norm_add(spec: NormAddSpec, ops: BoundOps) -> HotCall:
    """x [T, n] act, summed over the group; residual [T, n] act; weight [n] act -> norm(x) + residual [T, n] act"""
    norm = ops.bind("rms_norm", spec.norm)
    group = ops.groups[spec.reduce] if spec.reduce is not None else None

    def call(x: Tensor, residual: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
        return into(norm(x if group is None else group.all_reduce(x), weight) + residual, out)

    return call


def _large_norm_adds() -> Iterator[tuple[NormAddSpec, int]]:
    for norm, tokens in _large_norms():
        yield NormAddSpec(norm), tokens


def _norm_add_inputs(spec: NormAddSpec, make: TrialInputs) -> tuple[Any, ...]:
    x, weight = _rms_norm_inputs(spec.norm, make)
    return x, make.normal(make.tokens, spec.norm.n, dtype=spec.norm.dtype), weight


# ---- qk_norm


@dataclass(frozen=True)
class QKNormSpec:
    """RMS norms of queries and keys, each over its whole projection. x [T, q + 2 k] has the queries, keys and values of
    this rank; the mean square is over all ranks of the group `reduce` (None: this rank has all of them)."""

    q: int
    k: int
    dtype: str
    eps: float
    reduce: str | None = None


def qk_norm(spec: QKNormSpec, ops: BoundOps) -> HotCall:
    """x [T, q + 2 k] act, queries, keys and values of this rank; q_weight [q] act; k_weight [k] act -> nothing

    Norms queries and keys in place and leaves values as they are."""
    group = ops.groups[spec.reduce] if spec.reduce is not None else None
    ranks = 1 if group is None else group.size

    def call(x: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
        parts = x[:, : spec.q], x[:, spec.q : spec.q + spec.k]
        squares = torch.stack([part.float().square().sum(-1, keepdim=True) for part in parts])
        if group is not None:
            squares = group.all_reduce(squares)
        for part, total, weight in zip(parts, squares, (q_weight, k_weight), strict=True):
            mean = total / (part.shape[-1] * ranks)
            part.copy_((part.float() * torch.rsqrt(mean + spec.eps) * weight.float()).to(x.dtype))

    return call


def _qk_norms() -> Iterator[QKNormSpec]:
    for dtype in DTYPES:
        yield QKNormSpec(60, 20, dtype, 1e-5)


def _large_qk_norms() -> Iterator[tuple[QKNormSpec, int]]:
    for dtype in DTYPES:
        yield QKNormSpec(4104, 1032, dtype, 1e-5), 4


def _qk_norm_inputs(spec: QKNormSpec, make: TrialInputs) -> tuple[Any, ...]:
    x = make.normal(make.tokens, spec.q + 2 * spec.k)
    x[1::3] *= largest(spec.q, spec.dtype)
    return x.to(torch_dtype(spec.dtype)), make.normal(spec.q, dtype=spec.dtype), make.normal(spec.k, dtype=spec.dtype)


# ---- norm_linear


@dataclass(frozen=True)
class NormLinearSpec:
    """add_norm, then linear of its result. Returns the product and the residual."""

    norm: AddNormSpec
    linear: LinearSpec


def norm_linear(spec: NormLinearSpec, ops: BoundOps) -> HotCall:
    """x [T, k] act; residual [T, k] act or None; norm_weight [k] act; weight Packed -> y [T, n] act; x + residual
    [T, k] act"""
    norm = ops.bind_emitting("add_norm", spec.norm, ops.wants("linear", spec.linear))
    product = ops.bind("linear", spec.linear)

    def call(
        x: Tensor, residual: Tensor | None, norm_weight: Tensor, weight: Packed, *, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        normed, residual = norm(x, residual, norm_weight)
        return product(normed, weight, out=out), residual

    return call


def _norm_linears() -> Iterator[NormLinearSpec]:
    for linear in linears():
        yield _norm_linear_of(linear)


def _large_norm_linears() -> Iterator[tuple[NormLinearSpec, int]]:
    for linear, tokens in large_linears():
        yield _norm_linear_of(linear), tokens


def _norm_linear_of(linear: LinearSpec) -> NormLinearSpec:
    return NormLinearSpec(AddNormSpec(NormSpec(linear.k, linear.dtype, 1e-6)), linear)


def _norm_linear_inputs(spec: NormLinearSpec, make: TrialInputs) -> tuple[Any, ...]:
    return *_add_norm_inputs(spec.norm, make), make.weight(spec.linear)


OPS = (
    Op(
        "rms_norm", "core", rms_norm,
        sample_specs=_rms_norms, large_samples=_large_rms_norms, inputs=_rms_norm_inputs, tolerances=ROUNDED_ONCE,
        served_spec=_served_norm,
    ),
    Op(
        "layer_norm", "core", layer_norm,
        sample_specs=_layer_norms_of_heads, large_samples=_large_layer_norms,
        inputs=_layer_norm_inputs, tolerances=ROUNDED_ONCE,
        served_spec=_served_layer_norm,
    ),
    Op(
        "add_norm", "core", compose=add_norm, parts=("rms_norm",),
        emits_by=lambda spec: ("rms_norm", spec.norm),
        sample_specs=_add_norms, large_samples=_large_add_norms, inputs=_add_norm_inputs,
        served_spec=lambda dtype: AddNormSpec(_served_norm(dtype)),
    ),
    Op(
        "add_layer_norm", "core", compose=add_layer_norm, parts=("layer_norm",),
        sample_specs=lambda: map(AddLayerNormSpec, _layer_norms()), large_samples=_large_add_layer_norms,
        inputs=_add_layer_norm_inputs,
        served_spec=lambda dtype: AddLayerNormSpec(_served_layer_norm(dtype)),
    ),
    Op(
        "norm_add", "core", compose=norm_add, parts=("rms_norm",),
        sample_specs=lambda: map(NormAddSpec, _norms()), large_samples=_large_norm_adds, inputs=_norm_add_inputs,
        served_spec=lambda dtype: NormAddSpec(_served_norm(dtype)),
    ),
    Op(
        "qk_norm", "core", compose=qk_norm, mutates=("x",),
        sample_specs=_qk_norms, large_samples=_large_qk_norms, inputs=_qk_norm_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: QKNormSpec(HIDDEN, 256, dtype, 1e-6),
    ),
    Op(
        "norm_linear", "core", compose=norm_linear, parts=("add_norm", "linear"),
        sample_specs=_norm_linears, large_samples=_large_norm_linears, inputs=_norm_linear_inputs,
        served_spec=lambda dtype: NormLinearSpec(AddNormSpec(_served_norm(dtype)), LinearSpec(HIDDEN, HIDDEN, dtype)),
    ),
)  # fmt: skip
