"""Norms, alone and with what stands around them: the residual, the sum over a group, the product that follows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tessera.platform.ops.linear import LinearSpec
from tessera.platform.quantization import ActSpec


@dataclass(frozen=True)
class NormSpec:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * (weight + offset), in float32. emit: give the
    result quantised so."""

    n: int
    dtype: str
    eps: float
    offset: float = 0.0
    emit: ActSpec | None = None

    def emitting(self, emit: ActSpec) -> NormSpec:
        return dataclasses.replace(self, emit=emit)


@dataclass(frozen=True)
class LayerNormSpec:
    """Layer norm over the last dimension: (x - mean) / sqrt(variance + eps) * weight + bias, in float32."""

    n: int
    dtype: str
    eps: float


@dataclass(frozen=True)
class AddNormSpec:
    """x is summed over the group `reduce` (None: it is whole), times `multiplier` added to the residual, the sum
    normed. Without a residual the multiplier does nothing."""

    norm: NormSpec
    reduce: str | None = None
    multiplier: float = 1.0

    def emitting(self, emit: ActSpec) -> AddNormSpec:
        return dataclasses.replace(self, norm=self.norm.emitting(emit))


@dataclass(frozen=True)
class AddLayerNormSpec:
    """x is summed over the group `reduce`, the residual added, the sum normed."""

    norm: LayerNormSpec
    reduce: str | None = None


@dataclass(frozen=True)
class NormAddSpec:
    """x is summed over the group `reduce`, normed, and added to the residual."""

    norm: NormSpec
    reduce: str | None = None


@dataclass(frozen=True)
class QKNormSpec:
    """RMS norms of queries and of keys, each over its whole projection: of x [T, q + 2 k] here, queries, keys and
    values, the mean square is taken over the group `reduce` (None: all of them are here)."""

    q: int
    k: int
    dtype: str
    eps: float
    reduce: str | None = None


@dataclass(frozen=True)
class NormLinearSpec:
    """add_norm, then linear over its result: gives the product and the residual."""

    norm: AddNormSpec
    linear: LinearSpec
