"""A quantization format after parsing: what the bytes of a weight mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm


@dataclass(frozen=True)
class QuantSpec:
    """How numbers are stored. dtype: of the stored elements ("int8", "int4", "fp8_e4m3", ...). granularity: which
    elements share a scale. group: if granularity is "group", the elements per scale along the input dimension."""

    dtype: str
    granularity: str = "tensor"  # "tensor", "channel", "token", "group", "block"
    group: int = 0
    symmetric: bool = True
    scale_dtype: str = "float32"


@dataclass(frozen=True)
class ActSpec(QuantSpec):
    """An activation that the op producing it quantizes. sums: if not 0, also emit the sum of every `sums` elements of a
    row, for weights with a nonzero zero point; the row length is a multiple of it."""

    sums: int = 0


KV_INT8 = QuantSpec("int8", granularity="token")
"""For a KV cache (FullAttentionSpec.quant): a float32 scale per token and head, separate for keys and values."""


@dataclass(frozen=True)
class TensorSpec:
    """One of the tensors that a quantized weight consists of. Its shape is (n, k) divided by `per`."""

    dtype: str
    per: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scheme:
    """The format of a weight, and of activations and the KV cache if they are quantized too. parts: the tensors of the
    weight, by name. granules: the smallest shard along (n, k)."""

    weight: QuantSpec
    activation: ActSpec | None = None
    kv: QuantSpec | None = None
    parts: Mapping[str, TensorSpec] = field(default_factory=dict, hash=False)
    granules: tuple[int, int] = (1, 1)

    def granule(self, dim: int) -> int:
        """Smallest number of rows (dim 0) or columns (dim 1) that a shard may hold."""
        return lcm(self.granules[dim], self.weight.group if dim == 1 and self.weight.group else 1)
