"""Activations with scales: what a product may take, and how one is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tessera.platform.device import Tensor
from tessera.platform.quantization import ActSpec


class Quantized(NamedTuple):
    """An activation with its scales: data [T, n] in the ActSpec's dtype, scale [T, 1] or [1]; the value is data *
    scale. sums [T, n / ActSpec.sums] int32: of data, where they are wanted. Accepted wherever a tensor is the input of
    a product."""

    data: Tensor
    scale: Tensor
    sums: Tensor | None = None


@dataclass(frozen=True)
class QuantizeSpec:
    """x [T, n] of `dtype` -> Quantized as `emit` says."""

    n: int
    dtype: str
    emit: ActSpec
