"""Layer norms: of a tensor, and after adding the residual."""

from __future__ import annotations

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.weights import Parameter, Part
from tessera.ops import AddLayerNormSpec, LayerNormSpec


def layer_norm_parameter(build: Build, name: str, spec: LayerNormSpec) -> Parameter:
    """Weight and bias [n] of the checkpoint."""
    parts = {
        "weight": [Part(f"{name}.weight", (spec.n,), fill=1.0)],
        "bias": [Part(f"{name}.bias", (spec.n,), fill=0.0)],
    }
    return build.register_parameter(
        Parameter(parts, lambda raw, into: build.ops.prepare("layer_norm", spec, raw, into))
    )


class LayerNorm:
    def __init__(self, build: Build, name: str, n: int, eps: float) -> None:
        spec = LayerNormSpec(n, build.dtype, eps)
        self.parameter = layer_norm_parameter(build, name, spec)
        self.call = build.ops.bind("layer_norm", spec)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, self.parameter.packed["weight"], self.parameter.packed["bias"])
        return result


class AddLayerNorm:
    """(x, residual) -> (norm(x + residual), x + residual); x is first summed over the ranks."""

    def __init__(self, build: Build, name: str, n: int, eps: float) -> None:
        spec = AddLayerNormSpec(LayerNormSpec(n, build.dtype, eps), build.reduce)
        self.parameter = layer_norm_parameter(build, name, spec.norm)
        self.call = build.ops.bind("add_layer_norm", spec)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        packed = self.parameter.packed
        result: tuple[Tensor, Tensor] = self.call(x, residual, packed["weight"], packed["bias"])
        return result
