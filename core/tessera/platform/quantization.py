"""A quantization format after parsing: what the bytes of a weight mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm


@dataclass(frozen=True)
class QuantSpec:
    """How numbers are stored. dtype: of the stored elements ("int8", "int4", "fp8_e4m3", ...). granularity: what shares
    a scale. group: elements a scale along the input dimension where granularity is "group"."""

    dtype: str
    granularity: str = "tensor"  # "tensor", "channel", "token", "group", "block"
    group: int = 0
    symmetric: bool = True
    scale_dtype: str = "float32"


@dataclass(frozen=True)
class ActSpec(QuantSpec):
    """An activation quantised as it is made. sums: of how many elements of a row the sums are wanted too, for weights
    with a zero that is not 0; a row is a multiple of it. 0: none."""

    sums: int = 0


KV_INT8 = QuantSpec("int8", granularity="token")
"""Of a cache (FullAttentionSpec.quant): a float32 scale for each token and head, of keys and of values apart."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a format's parts: shape in terms of n and k after division by `per`."""

    dtype: str
    per: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scheme:
    """A weight's format; activation and KV formats where they are quantised too. granules: smallest shard along (n,
    k)."""

    weight: QuantSpec
    activation: ActSpec | None = None
    kv: QuantSpec | None = None
    parts: Mapping[str, TensorSpec] = field(default_factory=dict, hash=False)
    granules: tuple[int, int] = (1, 1)

    def granule(self, dim: int) -> int:
        """Smallest number of rows (dim 0) or columns (dim 1) that a shard may hold."""
        return lcm(self.granules[dim], self.weight.group if dim == 1 and self.weight.group else 1)
