"""RMS norm and layer norm: alone, after adding the residual, and fused with the linear layer that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Linear
from tessera.layers.weights import Parameter
from tessera.ops import AddLayerNormSpec, AddNormSpec, LayerNormSpec, LinearSpec, NormAddSpec, NormLinearSpec, NormSpec
from tessera.platform.ops import HotCall, Packed
from tessera.platform.quantization import ActSpec, Part


@dataclass(frozen=True)
class Norm:
    """A model's norm. offset: added to the weight. multiplier: applied to what is added to the residual. whole: the
    input is already complete on every rank, not a partial sum."""

    eps: float
    offset: float = 0.0
    multiplier: float = 1.0
    whole: bool = False

    def spec(self, n: int, dtype: str) -> NormSpec:
        return NormSpec(n, dtype, self.eps, self.offset)

    def adding(self, build: Build, n: int) -> AddNormSpec:
        return AddNormSpec(self.spec(n, build.dtype), None if self.whole else build.reduce, self.multiplier)


def norm_parameter(build: Build, name: str, spec: NormSpec, rows: tuple[int, int] | None = None) -> Parameter:
    """A norm weight [n] from the checkpoint. rows: this rank's rows, if not all."""
    part = Part(f"{name}.weight", (spec.n,), rows, fill=1.0 - spec.offset)
    return build.register_parameter(
        Parameter({"weight": [part]}, lambda raw, into: build.ops.prepare("rms_norm", spec, raw, into))
    )


class AddNorm:
    """(x, residual) -> (norm(x + residual), x + residual). A partial sum x is first reduced over the ranks. emit: the
    quantization in which the consumer wants the normed activation."""

    def __init__(self, build: Build, name: str, n: int, norm: Norm, *, emit: ActSpec | None = None) -> None:
        spec = norm.adding(build, n)
        self.parameter = norm_parameter(build, name, spec.norm)
        self.call = build.ops.bind_emitting("add_norm", spec, emit)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.call(x, residual, self.parameter.tensor)
        return result


class NormByHead:
    """[T, heads * n] -> the same, with an RMS norm over each head. The weight is one of all heads."""

    def __init__(self, build: Build, name: str, heads: int, n: int, norm: Norm) -> None:
        spec = norm.spec(n, build.dtype)
        self.heads, self.n = heads, n
        self.parameter = norm_parameter(build, name, spec)
        self.call = build.ops.bind("rms_norm", spec)

    def __call__(self, x: Tensor) -> Tensor:
        normed: Tensor = self.call(x.reshape(-1, self.n), self.parameter.tensor)
        return normed.reshape(len(x), self.heads * self.n)


class NormLinear:
    """AddNorm and the linear layer that follows it, as one composite; if the layer is several products, as norm and
    products."""

    def __init__(self, build: Build, name: str, norm: Norm, linear: Linear) -> None:
        spec = norm.adding(build, linear.spec.k)
        self.linear = linear
        self.parameter = norm_parameter(build, name, spec.norm)
        self.call: Any = (
            build.ops.bind("norm_linear", NormLinearSpec(spec, linear.spec))
            if isinstance(linear.spec, LinearSpec)
            else _norm_and_products(build, spec, linear)
        )

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.call(x, residual, self.parameter.tensor, *self.linear.weights)
        return result


def _norm_and_products(build: Build, spec: AddNormSpec, linear: Linear) -> HotCall:
    norm = build.ops.bind_emitting("add_norm", spec, build.ops.wants(linear.op, linear.spec))

    def call(x: Tensor, residual: Tensor | None, norm_weight: Tensor, *weights: Packed) -> tuple[Tensor, Tensor]:
        normed, residual = norm(x, residual, norm_weight)
        return linear.call(normed, *weights), residual

    return call


class NormAdd:
    """(x, residual) -> norm(x) + residual. x is first reduced over the ranks."""

    def __init__(self, build: Build, name: str, n: int, norm: Norm) -> None:
        spec = NormAddSpec(norm.spec(n, build.dtype), build.reduce)
        self.parameter = norm_parameter(build, name, spec.norm)
        self.call = build.ops.bind("norm_add", spec)

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        result: Tensor = self.call(x, residual, self.parameter.tensor)
        return result


def layer_norm_parameter(build: Build, name: str, spec: LayerNormSpec, *, bias: bool = True) -> Parameter:
    """A layer norm's weight and bias [n] from the checkpoint; zeros if it has no bias. Checkpoints that once were
    TensorFlow's call them gamma and beta."""
    parts = {"weight": [Part(f"{name}.weight", (spec.n,), fill=1.0, also=(f"{name}.gamma",))]}
    if bias:
        parts["bias"] = [Part(f"{name}.bias", (spec.n,), fill=0.0, also=(f"{name}.beta",))]

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        raw.setdefault("bias", torch.zeros_like(raw["weight"]))
        return build.ops.prepare("layer_norm", spec, raw, into)

    return build.register_parameter(Parameter(parts, prepare))


class LayerNorm:
    def __init__(self, build: Build, name: str, n: int, eps: float, *, bias: bool = True) -> None:
        spec = LayerNormSpec(n, build.dtype, eps)
        self.parameter = layer_norm_parameter(build, name, spec, bias=bias)
        self.call = build.ops.bind("layer_norm", spec)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, self.parameter.packed["weight"], self.parameter.packed["bias"])
        return result


class AddLayerNorm:
    """(x, residual) -> (norm(x + residual), x + residual). x is first reduced over the ranks, unless it is already
    complete on every rank (whole)."""

    def __init__(self, build: Build, name: str, n: int, eps: float, *, bias: bool = True, whole: bool = False) -> None:
        spec = AddLayerNormSpec(LayerNormSpec(n, build.dtype, eps), None if whole else build.reduce)
        self.parameter = layer_norm_parameter(build, name, spec.norm, bias=bias)
        self.call = build.ops.bind("add_layer_norm", spec)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        packed = self.parameter.packed
        result: tuple[Tensor, Tensor] = self.call(x, residual, packed["weight"], packed["bias"])
        return result
