"""What is done to each element: activations, gates, sums, soft caps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tessera.platform.quantization import ActSpec


@dataclass(frozen=True)
class GateSpec:
    """act(x[:, :n]) * x[:, n:]. activation: "silu", "gelu" or "gelu_tanh"."""

    n: int
    dtype: str
    activation: str = "silu"
    emit: ActSpec | None = None

    def emitting(self, emit: ActSpec) -> GateSpec:
        return dataclasses.replace(self, emit=emit)


@dataclass(frozen=True)
class ActivationSpec:
    """act(x). activation: as GateSpec has it."""

    n: int
    dtype: str
    activation: str


@dataclass(frozen=True)
class AddSpec:
    """a + b, both [T, n] of `dtype`."""

    n: int
    dtype: str


@dataclass(frozen=True)
class SoftCapSpec:
    """x * scale, then held between -cap and cap by a tangent: tanh(x / cap) * cap, in float32. cap 0: none."""

    n: int
    dtype: str
    cap: float = 0.0
    scale: float = 1.0
