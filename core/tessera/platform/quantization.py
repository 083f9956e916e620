"""A quantization format after parsing: what the bytes of a weight mean; and how checkpoints store such weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import lcm, prod
from typing import Protocol

from tessera.platform.device import Reason, Tensor


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
    row, for weights with a nonzero zero point; the row length is a multiple of it. static: the scale is not computed
    from the activation; it is a part of the weight, "input_scale", and only the product itself can round with it."""

    sums: int = 0
    static: bool = False


KV_INT8 = QuantSpec("int8", granularity="token")
"""For a KV cache (FullAttentionSpec.quant): a float32 scale per token and head, separate for keys and values."""


@dataclass(frozen=True)
class TensorSpec:
    """One of the tensors that a quantized weight consists of. Its shape is (n, k) divided by `per`, of which there may
    be fewer; () is a single number."""

    dtype: str
    per: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scheme:
    """The format of a weight, and of activations and the KV cache if they are quantized too. parts: the tensors of the
    weight by name: "weight" and "scale", and "zero_point" if it is not symmetric; the value is (weight - zero_point) *
    scale. "input_scale" if the activation is static. granules: the smallest shard along (n, k)."""

    weight: QuantSpec
    activation: ActSpec | None = None
    kv: QuantSpec | None = None
    parts: Mapping[str, TensorSpec] = field(default_factory=dict, hash=False)
    granules: tuple[int, int] = (1, 1)

    def granule(self, dim: int) -> int:
        """Smallest number of rows (dim 0) or columns (dim 1) that a shard may hold."""
        return lcm(self.granules[dim], self.weight.group if dim == 1 and self.weight.group else 1)


# ---- weights that a checkpoint has quantized


@dataclass(frozen=True)
class Unpacking:
    """How a stored tensor becomes a part of a scheme. call: takes the stored shard, on the host or on torch's meta
    device. rows: of the result. numbers: how many of the weight's numbers it holds; 0 for scales and zero points."""

    call: Callable[[Tensor], Tensor] = field(compare=False)
    rows: int
    numbers: int = 0


@dataclass(frozen=True)
class Part:
    """A shard of a checkpoint tensor: rows and columns from start to stop; None is all, and rows beyond the tensor's
    are zeros. whole: the tensor's shape that config.json implies. fill: what a dummy load puts there (None: random).
    also: other names that checkpoints have for it. dtype: to be kept in, if that is not the model's. unpacking: what is
    done with the shard before it is joined to others."""

    name: str
    whole: tuple[int, ...]
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None
    fill: float | None = None
    also: tuple[str, ...] = ()
    dtype: str | None = None
    unpacking: Unpacking | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the shard, as it is stored."""
        if not self.whole:
            return ()
        rows, *rest = self.whole
        if self.rows is not None:
            rows = self.rows[1] - self.rows[0]
        if self.columns is not None:
            rest[0] = self.columns[1] - self.columns[0]
        return rows, *rest

    @property
    def length(self) -> int:
        """Rows that it adds to what it is joined into."""
        return self.shape[0] if self.unpacking is None else self.unpacking.rows

    @property
    def numbers(self) -> int:
        """How many of the model's numbers it holds."""
        return prod(self.shape) if self.unpacking is None else self.unpacking.numbers


@dataclass(frozen=True)
class StoredWeight:
    """A weight that the checkpoint has quantized. parts: the tensor that each part of the scheme is read from."""

    scheme: Scheme
    parts: Mapping[str, Part]


class WeightFormat(Protocol):
    """How a checkpoint stores the weights that it has quantized. `registry.formats` has the dotted path of a function
    that takes config.json's quantization_config and returns one; it raises ModelError, naming the field, for what the
    format does not support. It is called in processes without torch, which may be imported only in Unpacking.call."""

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Reason:
        """How a shard of a weight "NAME.weight", [n, k], is stored. module: the class that holds it in the model's
        original code: "Linear", "Conv1D" or "Embedding". dtype: of the model. Returns a reason if the weight is not
        quantized. Raises ModelError for a weight, or a shard of it, that cannot be stored so."""
