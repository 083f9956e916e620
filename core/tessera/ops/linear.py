"""Linear layers, and embeddings: the rows of a weight for given tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.ops.quantize import INT8, Activation, Quantized, meaning_of, plain, rounded
from tessera.ops.tensors import DTYPES, HIDDEN, LARGE_VOCAB, ROUNDED_ONCE, VOCAB, into, torch_dtype
from tessera.platform.ops import BoundOps, HotCall, Op, Packed, TrialInputs
from tessera.platform.quantization import QuantSpec, Scheme, TensorSpec

__all__ = ["EmbeddingSpec", "JoinedLinearSpec", "LinearSpec", "PackedEmbeddingSpec", "SegmentEmbeddingSpec"]

_STRETCH = 1 << 22  # elements of a weight that are converted to float32 at a time


# ---- embedding


@dataclass(frozen=True)
class EmbeddingSpec:
    """weight[token] * scale. sharded: this rank has only rows start..start+rows of the vocabulary. Other tokens give
    zeros, so that the sum over the group is the embedding."""

    rows: int
    n: int
    dtype: str
    start: int = 0
    sharded: bool = False
    scale: float = 1.0


def embedding(spec: EmbeddingSpec, tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """tokens [T] int32; weight [Vr, n] act -> [T, n] act; zeros for tokens of other ranks"""
    if spec.sharded:
        here, inside = _on_this_rank(tokens, spec.start, spec.rows)
        rows = torch.where(inside[:, None], F.embedding(here, weight), 0)
    else:
        rows = F.embedding(tokens, weight)
    return into(rows if spec.scale == 1.0 else rows * spec.scale, out)


def _on_this_rank(tokens: Tensor, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """The row of each token, 0 if another rank has it; and a mask of the tokens that this rank has."""
    here = tokens - start
    inside = (here >= 0) & (here < rows)
    return torch.where(inside, here, 0), inside


def _embeddings() -> Iterator[EmbeddingSpec]:
    for dtype in DTYPES:
        yield EmbeddingSpec(97, 40, dtype)
        yield EmbeddingSpec(33, 56, dtype, start=33, sharded=True)
        yield EmbeddingSpec(33, 40, dtype, start=33, sharded=True, scale=6.3125)
        yield EmbeddingSpec(97, 40, dtype, scale=6.3125)


def _large_embeddings() -> Iterator[tuple[EmbeddingSpec, int]]:
    for dtype in DTYPES:
        yield EmbeddingSpec(LARGE_VOCAB, 4, dtype), 19
    yield EmbeddingSpec(LARGE_VOCAB // 2, 4, DTYPES[0], start=LARGE_VOCAB // 2, sharded=True), 19
    yield EmbeddingSpec(97, 2056, DTYPES[0]), 19


def _embedding_inputs(spec: EmbeddingSpec, make: TrialInputs) -> tuple[Any, ...]:
    return _token_ids(spec.rows, spec.sharded, make), make.normal(spec.rows, spec.n, dtype=spec.dtype)


# ---- segment_embedding


@dataclass(frozen=True)
class SegmentEmbeddingSpec:
    """The embedding of a token's type: row 1 of a [rows, n] weight from a text's boundary on, row 0 before it."""

    rows: int
    n: int
    dtype: str


def segment_embedding(
    spec: SegmentEmbeddingSpec,
    positions: Tensor,
    boundaries: Tensor | None,
    weight: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """positions [T] int32; boundaries [T] int32 or None; weight [rows, n] act -> [T, n] act

    boundaries: the position of the first token of the second text, for each token; None, where no text has one."""
    if boundaries is None:
        return into(weight[0].repeat(len(positions), 1), out)
    return into(torch.where((positions >= boundaries)[:, None], weight[1], weight[0]), out)


def _segment_embeddings() -> Iterator[SegmentEmbeddingSpec]:
    for dtype in DTYPES:
        yield SegmentEmbeddingSpec(2, 40, dtype)
        yield SegmentEmbeddingSpec(1, 129, dtype)


def _segment_embedding_inputs(spec: SegmentEmbeddingSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Every third token is the first of its second text."""
    positions, boundaries = make.integers(0, 50, make.tokens), make.integers(0, 50, make.tokens)
    boundaries[::3] = positions[::3]
    return positions, boundaries if spec.rows > 1 else None, make.normal(spec.rows, spec.n, dtype=spec.dtype)


def _token_ids(rows: int, sharded: bool, make: TrialInputs) -> Tensor:
    """sharded: two thirds of the tokens belong to other ranks."""
    return make.integers(0, 3 * rows if sharded else rows, make.tokens)


# ---- linear


@dataclass(frozen=True)
class LinearSpec:
    """y[T, n] = x[T, k] W^T + b. experts: unless 0, W is [experts, n, k], and b [experts, n]."""

    n: int
    k: int
    dtype: str
    scheme: Scheme | None = None
    bias: bool = False
    experts: int = 0


def linear(spec: LinearSpec, x: Activation, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    """x [T, k] act or Quantized; weight Packed, [n, k] and bias [n] act -> [T, n] act

    If spec.scheme is set, weight has the parts of that scheme instead."""
    if spec.scheme is not None:
        return into(_product(spec, spec.scheme, x, weight), out)
    return into(F.linear(plain(x, weight["weight"].dtype), weight["weight"], weight.get("bias")), out)


def _product(spec: LinearSpec, scheme: Scheme, x: Activation, weight: Packed) -> Tensor:
    """The product with a weight in the parts of a scheme, computed in float32. x [T, k] is rounded as the scheme
    says."""
    wide = rounded(plain(x, torch.float32).float(), scheme.activation, weight.get("input_scale"))
    result = wide.new_empty(len(wide), spec.n, dtype=torch_dtype(spec.dtype))
    step = max(_STRETCH // spec.k, 1)
    for start in range(0, spec.n, step):
        some = slice(start, start + step)
        sums = wide @ meaning_of(weight, scheme, some).T
        result[:, some] = sums + weight["bias"][some].float() if spec.bias else sums
    return result


def linears() -> Iterator[LinearSpec]:
    """The specs that are tested."""
    for dtype in DTYPES:
        for n, k in ((8, 8), (72, 40), (130, 56)):
            yield LinearSpec(n, k, dtype)
            yield LinearSpec(n, k, dtype, bias=True)


def large_linears() -> Iterator[tuple[LinearSpec, int]]:
    """Long sums, many outputs, and sizes that are multiples of the tiles of kernels."""
    for dtype in DTYPES:
        for n, k in ((24, _LONG), (4200, 32), (128, 1024)):
            yield LinearSpec(n, k, dtype, bias=n > k), 19
        yield LinearSpec(24, _LONG, dtype), 1


_LONG = 8200  # inputs


def linear_inputs(spec: LinearSpec, make: TrialInputs) -> tuple[Any, ...]:
    return make.normal(make.tokens, spec.k, dtype=spec.dtype), make.weight(spec)


def _single_linear_inputs(spec: LinearSpec, make: TrialInputs) -> tuple[Any, ...]:
    """If sums are long, half of the first output's sum is larger than any float16 in some rows, and the whole is not.
    Not in float32: of such numbers, what sums of another order differ by is as large as what is left."""
    x, state = make.normal(make.tokens, spec.k), make.random.get_state()
    if spec.k >= _LONG and spec.dtype != "float32":
        first = make.normal(spec.n, spec.k, scale=1 / math.sqrt(spec.k))[0]  # of the weight, which is drawn again
        make.random.set_state(state)
        x[1::5] = _HUGE * first
        x[1::5, spec.k // 2 :] *= -0.8
    return x.to(torch_dtype(spec.dtype)), make.weight(spec)


_HUGE = 2.4e5


# ---- joined_linear


@dataclass(frozen=True)
class JoinedLinearSpec:
    """Products of one input, whose results lie side by side: of weights that are stored differently, such as q and k in
    one scheme and v in another. All have the same k and dtype."""

    linears: tuple[LinearSpec, ...]

    @property
    def n(self) -> int:
        """Outputs of all."""
        return sum(one.n for one in self.linears)

    @property
    def k(self) -> int:
        return self.linears[0].k

    @property
    def dtype(self) -> str:
        return self.linears[0].dtype


def joined_linear(spec: JoinedLinearSpec, ops: BoundOps) -> HotCall:
    """x [T, k] act or Quantized; weights Packed, one for each linear -> [T, sum of n] act"""
    products, ends = [ops.bind("linear", one) for one in spec.linears], list(accumulate(one.n for one in spec.linears))
    places = [slice(end - one.n, end) for one, end in zip(spec.linears, ends, strict=True)]
    dtype = torch_dtype(spec.dtype)

    def call(x: Activation, *weights: Packed, out: Tensor | None = None) -> Tensor:
        data = x.data if isinstance(x, Quantized) else x
        result = data.new_empty(len(data), spec.n, dtype=dtype) if out is None else out
        for product, place, weight in zip(products, places, weights, strict=True):
            product(x, weight, out=result[:, place])
        return result

    return call


def _joined_linears() -> Iterator[JoinedLinearSpec]:
    for dtype in DTYPES:
        plain, quantized = LinearSpec(72, 40, dtype), LinearSpec(24, 40, dtype, INT8_ROWS)
        yield JoinedLinearSpec((plain, LinearSpec(13, 40, dtype, bias=True)))
        yield JoinedLinearSpec((quantized, plain, quantized))


def _joined_linear_inputs(spec: JoinedLinearSpec, make: TrialInputs) -> tuple[Any, ...]:
    return make.normal(make.tokens, spec.k, dtype=spec.dtype), *(make.weight(one) for one in spec.linears)


# ---- packed_embedding


@dataclass(frozen=True)
class PackedEmbeddingSpec:
    """Rows of a linear's weight in the linear's dtype, times scale: the embedding of a model whose head has the same
    weight. A kernel supports a linear if it can read the weight as the platform's own linear packs it. start, sharded:
    as in EmbeddingSpec."""

    linear: LinearSpec
    start: int = 0
    sharded: bool = False
    scale: float = 1.0


def packed_embedding(spec: PackedEmbeddingSpec, tokens: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    """tokens [T] int32; weight Packed, of the spec's linear [Vr, k] -> [T, k] act; zeros for tokens of other ranks"""
    scheme, inside, here = spec.linear.scheme, None, tokens
    if spec.sharded:
        here, inside = _on_this_rank(tokens, spec.start, spec.linear.n)
    rows = weight["weight"][here].float() if scheme is None else meaning_of(weight, scheme, here)
    if inside is not None:
        rows = torch.where(inside[:, None], rows, 0)
    return into((rows * spec.scale).to(torch_dtype(spec.linear.dtype)), out)


INT8_ROWS = Scheme(
    QuantSpec("int8", "channel"),
    INT8,
    parts={"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))},
)


def _packed_embeddings() -> Iterator[PackedEmbeddingSpec]:
    int4 = Scheme(
        QuantSpec("int4", "group", 8, scale_dtype="bfloat16"),
        INT8,
        parts={"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, 8))},
    )
    for dtype in DTYPES:
        for scheme in (None, INT8_ROWS, int4):
            yield PackedEmbeddingSpec(LinearSpec(97, 40, dtype, scheme))
            yield PackedEmbeddingSpec(LinearSpec(33, 56, dtype, scheme), start=33, sharded=True)
            yield PackedEmbeddingSpec(LinearSpec(33, 40, dtype, scheme), start=33, sharded=True, scale=6.3125)
            yield PackedEmbeddingSpec(LinearSpec(97, 520, dtype, scheme), scale=6.3125)


def _large_packed_embeddings() -> Iterator[tuple[PackedEmbeddingSpec, int]]:
    for dtype in DTYPES:
        yield PackedEmbeddingSpec(LinearSpec(LARGE_VOCAB, 4, dtype)), 19
    yield PackedEmbeddingSpec(LinearSpec(LARGE_VOCAB, 4, DTYPES[1], INT8_ROWS)), 19


def _packed_embedding_inputs(spec: PackedEmbeddingSpec, make: TrialInputs) -> tuple[Any, ...]:
    return _token_ids(spec.linear.n, spec.sharded, make), make.weight(spec.linear)


OPS = (
    Op(
        "embedding", "core", embedding,
        sample_specs=_embeddings, large_samples=_large_embeddings, inputs=_embedding_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: EmbeddingSpec(VOCAB, HIDDEN, dtype),
    ),
    Op(
        "segment_embedding", "core", segment_embedding,
        sample_specs=_segment_embeddings, inputs=_segment_embedding_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: SegmentEmbeddingSpec(2, HIDDEN, dtype),
    ),
    Op(
        "linear", "core", linear,
        sample_specs=linears, large_samples=large_linears, inputs=_single_linear_inputs,
        served_spec=lambda dtype: LinearSpec(HIDDEN, HIDDEN, dtype),
    ),
    Op(
        "joined_linear", "core", compose=joined_linear, parts=("linear",),
        takes_by=lambda spec: tuple(("linear", one) for one in spec.linears),
        sample_specs=_joined_linears, inputs=_joined_linear_inputs,
        served_spec=lambda dtype: JoinedLinearSpec((LinearSpec(HIDDEN, HIDDEN, dtype), LinearSpec(256, HIDDEN, dtype))),
    ),
    Op(
        "packed_embedding", "core", packed_embedding,
        sample_specs=_packed_embeddings, large_samples=_large_packed_embeddings,
        inputs=_packed_embedding_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: PackedEmbeddingSpec(LinearSpec(VOCAB, HIDDEN, dtype)),
    ),
)  # fmt: skip
