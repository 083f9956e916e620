"""RMS norms: alone, after adding the residual, and together with the product that follows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Linear
from tessera.layers.weights import Part, Slot
from tessera.platform.ops import AddNormSpec, NormLinearSpec, NormSpec
from tessera.platform.quantization import ActSpec


def norm_slot(build: Build, name: str, spec: NormSpec) -> Slot:
    """A norm's weight [n] of the checkpoint."""
    part = Part(f"{name}.weight", (spec.n,), fill=1.0 - spec.offset)
    return build.slot(Slot({"weight": [part]}, lambda raw, into: build.ops.prepare("rms_norm", spec, raw, into)))


class AddNorm:
    """(x, residual) -> (norm(x + residual), x + residual); x is first summed over the ranks where it is a partial sum.
    emit: how its consumer would have the normed activation quantised."""

    def __init__(self, build: Build, name: str, n: int, eps: float, *, emit: ActSpec | None = None) -> None:
        spec = AddNormSpec(NormSpec(n, build.dtype, eps), build.reduce)
        self.slot = norm_slot(build, name, spec.norm)
        self.call = build.ops.bind_emitting("add_norm", spec, emit)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.call(x, residual, self.slot.tensor)
        return result


class NormLinear:
    """AddNorm and the product that follows, as one composite."""

    def __init__(self, build: Build, name: str, eps: float, linear: Linear) -> None:
        norm = AddNormSpec(NormSpec(linear.spec.k, build.dtype, eps), build.reduce)
        self.linear = linear
        self.slot = norm_slot(build, name, norm.norm)
        self.call: Any = build.ops.bind("norm_linear", NormLinearSpec(norm, linear.spec))

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.call(x, residual, self.slot.tensor, self.linear.weight)
        return result
