"""Quantized numbers: what the bytes of a weight mean, and how checkpoints store quantized weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import lcm, prod
from typing import Protocol

from tessera.platform.device import Reason, Tensor


@dataclass(frozen=True)
class Encoding:
    """How a weight is stored whose scales lie beside its elements: each row is whole blocks of consecutive inputs, and
    only the encoding says what the bytes of a block mean, such as a scale of all, scales of parts, minimums, codes of a
    few bits. A block in which all bytes are 0 is zeros."""

    # inputs in a block
    elements: int
    # of a block, in all parts of the scheme together
    bytes: int
    # the definition: receives the scheme's parts of any number of rows and returns them in float32 [..., n, k]; on the
    # host, or on torch's meta device
    dequantize: Callable[[Mapping[str, Tensor]], Tensor] = field(compare=False, hash=False, repr=False)


@dataclass(frozen=True)
class QuantSpec:
    """How numbers are stored. Groups and blocks are counted from the first element; the last group of an activation,
    and the last blocks of a weight, may be partial."""

    # of the stored elements ("int8", "int4", "fp8_e4m3", ...), or the name of the encoding ("q4_k", "q8_0", ...)
    dtype: str
    # which elements share a scale
    granularity: str = "tensor"  # "tensor", "channel", "token", "group", "block"; "encoding": it says
    # if granularity is "group", the elements per scale along the input dimension
    group: int = 0
    # whether there are no zero points
    symmetric: bool = True
    # of the scales
    scale_dtype: str = "float32"
    # if granularity is "block", the outputs and inputs per scale
    block: tuple[int, int] | None = None
    # if granularity is "encoding", of a weight; then the other fields but dtype have no meaning
    encoding: Encoding | None = None


@dataclass(frozen=True)
class ActSpec(QuantSpec):
    """An activation that the op producing it quantizes. granularity: "tensor", "token", or "group": a scale for each
    token and `group` of its elements. sums: if not 0, also emit the sum of every `sums` elements of a row, for weights
    with a nonzero zero point; the row length is a multiple of it. static: the scale is not computed from the activation
    but is the part "input_scale" of the weight, so only the product can quantize."""

    sums: int = 0
    static: bool = False


KV_INT8 = QuantSpec("int8", granularity="token")
"""For a KV cache (FullAttentionSpec.quant): a float32 scale per token and head, separate for keys and values."""

KV_FP8 = QuantSpec("float8_e4m3fn")
"""For a KV cache: a float32 scale per layer, separate for keys and values, which the layer has as the weights "k_scale"
and "v_scale". What is out of range becomes the largest number (448), never NaN."""


@dataclass(frozen=True)
class TensorSpec:
    """One of the tensors that a quantized weight consists of. per: the divisors of its shape: (1, 2) is
    [n, k / 2], (1,) is [n], and () is a single number. For the scales of blocks they are the block, and the shape is
    rounded up. inner: further dimensions: (1, 256) and (144,) are [n, k / 256, 144], the blocks of an Encoding."""

    dtype: str
    per: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scheme:
    """The format of a weight, and of activations and the KV cache if they are quantized too. parts: the tensors of the
    weight: "weight" and "scale"; "zero_point" if it is not symmetric; "input_scale" if the activation is static. The
    value of an element is (weight - zero_point) * scale. With an encoding they are what its dequantize() takes,
    "weight" among them. granules: the smallest shard along (n, k)."""

    weight: QuantSpec
    activation: ActSpec | None = None
    kv: QuantSpec | None = None
    parts: Mapping[str, TensorSpec] = field(default_factory=dict, hash=False)
    granules: tuple[int, int] = (1, 1)

    def granule(self, dim: int) -> int:
        """Smallest number of rows (dim 0) or columns (dim 1) that a shard may hold. A block sets none, because a shard
        may end in a partial one; where a shard may begin is for the checkpoint's format to say."""
        if dim == 0:
            return self.granules[0]
        whole = self.weight.group if self.weight.encoding is None else self.weight.encoding.elements
        return lcm(self.granules[1], whole or 1)


# ---- weights that a checkpoint has quantized


@dataclass(frozen=True)
class Unpacking:
    """How a shard of a stored tensor becomes a part of a Scheme. call: receives the shard, on the host or on torch's
    meta device, and returns the part. rows: of the part. numbers: the number of the weight's elements that it holds; 0
    for scales and zero points."""

    call: Callable[[Tensor], Tensor] = field(compare=False)
    rows: int
    numbers: int = 0


@dataclass(frozen=True)
class Decoding:
    """How a shard of a weight is computed from the tensors that a checkpoint has in its place."""

    # what is read, each as a Part without a decoding
    parts: tuple[Part, ...]
    # receives what was read, in this order, on the host or on torch's meta device; returns the shard in float32
    call: Callable[..., Tensor] = field(compare=False)
    # how the weight is stored, in words, such as "int4 in groups of 128"
    stored: str = ""


@dataclass(frozen=True)
class Part:
    """A shard of a checkpoint tensor."""

    # in the checkpoint
    name: str
    # the tensor's shape that config.json implies; (-1,) is a vector of any length, of at most 65,536 elements
    whole: tuple[int, ...]
    # (start, stop), or None for all; rows past the end of the tensor are zeros
    rows: tuple[int, int] | None = None
    # (start, stop), or None for all
    columns: tuple[int, int] | None = None
    # the constant for a dummy load; None for random values
    fill: float | None = None
    # other names that it has in some checkpoints
    also: tuple[str, ...] = ()
    # to keep it in, if not the model's
    dtype: str | None = None
    # what to do with the shard before it is joined with others, if anything
    unpacking: Unpacking | None = None
    # if the checkpoint has other tensors, from which the shard is computed; then nothing of this name is read
    decoding: Decoding | None = None
    # if it is read in the blocks that it is stored in: `whole` and `columns` count these, and a block's bytes come last
    encoding: Encoding | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the shard in the checkpoint."""
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
        """The number of rows it has when it is joined with others."""
        return self.shape[0] if self.unpacking is None else self.unpacking.rows

    @property
    def numbers(self) -> int:
        """The number of elements of the model's weights that it holds."""
        if self.encoding is not None:
            return prod(self.shape[:2]) * self.encoding.elements
        return prod(self.shape) if self.unpacking is None else self.unpacking.numbers


@dataclass(frozen=True)
class StoredWeight:
    """A quantized weight in a checkpoint. parts: for each part of the scheme, the tensor to read. decoded: the same
    weight to be computed at load, where no kernel multiplies with the scheme; None: it is computed from the parts, or,
    on a platform that takes the scheme and has no kernel for products, the reference multiplies with them."""

    scheme: Scheme
    parts: Mapping[str, Part]
    decoded: Part | None = None


@dataclass(frozen=True)
class ReadWeight:
    """A weight of the checkpoint, read into host memory. name: as in the checkpoint. scheme: what the parts mean; None:
    the only part is "weight", and is not quantized."""

    name: str
    parts: Mapping[str, Tensor]
    scheme: Scheme | None = None


class WeightFormat(Protocol):
    """How a checkpoint stores quantized weights. `registry.formats` holds the dotted path of a function that takes the
    quantization_config of config.json and returns a WeightFormat, or raises ModelError, naming the field, for what is
    not supported. It also runs in processes without torch, so only the `call` of an Unpacking or a Decoding may import
    torch. A class that inherits from it has the defaults."""

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        """How the checkpoint stores a shard of "NAME.weight", [n, k] (of experts in one tensor, [experts, n, k]), or
        the reason why this weight is not quantized. A Part is the weight with a decoding: it is computed at load, and
        every platform multiplies with it as with one that was never quantized. module: the class that holds the weight
        in the model's original code: "Linear", "Conv1D" or "Embedding", or "Parameter", if that code uses the
        weight itself, which can then only be computed at load. dtype: of the model. Raises ModelError if the
        weight or the shard does not fit the format."""

    @property
    def kv(self) -> QuantSpec | None:
        """How the checkpoint wants keys and values kept unless the user says otherwise. Default: as the model computes
        them."""
        return None

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        """What to read of the scales of an attention layer's keys and values: "k_scale" and "v_scale", each [1]
        float32. attention: the name of the layer in the checkpoint. Default: none; in KV_FP8 both are 1."""
        return {}
