"""Mistakes in the ops of a layer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.ops import linear, lora, mlp, moe, norms, rotary
from tessera.ops.tensors import into
from tessera.platform import (
    AddNormSpec,
    BoundOps,
    Device,
    EmbeddingSpec,
    ExpertsSpec,
    GatedMLPSpec,
    GateSpec,
    Kernel,
    LayerNormSpec,
    LinearSpec,
    LoraSpec,
    NormSpec,
    OpSet,
    Packed,
    PackedEmbeddingSpec,
    QKNormSpec,
    RotarySpec,
    RouteSpec,
    SegmentEmbeddingSpec,
    SoftCapSpec,
    replace,
)
from tests.platforms.faulty.making import Base, with_float16, with_ops


def norm_in_few_bits(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.eps)
    return into(x * root * (weight + spec.offset), out)


def eps_outside(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    wide = x.float()
    root = wide.square().mean(-1, keepdim=True).sqrt() + spec.eps
    return into((wide / root * (weight.float() + spec.offset)).to(x.dtype), out)


def offset_left_out(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    return norms.rms_norm(dataclasses.replace(spec, offset=0.0), x, weight, out=out)


def stride_ignored(spec: LinearSpec, x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    return linear.linear(spec, x.as_strided(x.shape, (spec.k, 1)), weight, out=out)


class SplitsSumsOfMany(Kernel[LinearSpec]):
    """Sums the halves of a product apart if there are many rows, as a kernel may that needs work for all its cores."""

    def __init__(self, own: Kernel[LinearSpec]) -> None:
        self.own = own
        self.supports, self.prepare, self.wants = own.supports, own.prepare, own.wants
        self.packed_bytes, self.batch_invariant = own.packed_bytes, own.batch_invariant

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        product, first = self.own.bind(spec, ops, device), torch.arange(spec.k) < spec.k // 2

        def split(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            if len(x) <= _FEW:
                return product(x, weight, out=out)
            unbiased = {name: part for name, part in weight.items() if name != "bias"}
            return into(product(x * first, weight) + product(x * ~first, unbiased), out)

        return split


_FEW = 4


def splitting_sums_of_many(base: Base) -> Base:
    class Faulty(base):
        def ops(self, reference: OpSet) -> OpSet:
            own = super().ops(reference)
            return replace(own, linear=SplitsSumsOfMany(own["linear"].kernel))

    return Faulty


def bias_left_out(spec: LinearSpec, x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    return linear.linear(spec, x, {"weight": weight["weight"]}, out=out)


def neighbours_adapter(
    spec: LoraSpec, y: Tensor, x: Tensor, a: Tensor, b: Tensor, scales: Tensor, slots: Tensor
) -> None:
    lora.lora(spec, y, x, a, b, scales, slots.roll(1))


def pairs_for_halves(spec: RotarySpec, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    rotary.rotary(dataclasses.replace(spec, style="pairs"), q, k, positions, cos_sin)


def keys_unturned(spec: RotarySpec, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    rotary.rotary(spec, q, k.clone(), positions, cos_sin)


def out_ignored(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Any:
    return mlp.gate(spec, x)


def input_changed(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Any:
    left = x[:, : spec.n]
    return into(left.copy_(mlp.gate(spec, x)) if spec.activation == "silu" else mlp.gate(spec, x), out)


def another_each_time() -> Callable[..., Any]:
    calls = itertools.count()

    def activation(spec: Any, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        return into(mlp.activation(spec, x) + 1e-7 * (next(calls) % 2), out)

    return activation


def bias_twice(spec: LayerNormSpec, x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
    return norms.layer_norm(spec, x, weight, 2 * bias, out=out)


def others_rows(spec: EmbeddingSpec, tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Tokens of another rank get a row instead of zeros."""
    here = (tokens - spec.start).clamp(0, spec.rows - 1)
    return into(F.embedding(here, weight) * spec.scale, out)


def rows_of_one_panel(
    spec: PackedEmbeddingSpec, tokens: Tensor, weight: Packed, *, out: Tensor | None = None
) -> Tensor:
    """A row's place in its panel is taken for its place in the weight."""
    return linear.packed_embedding(spec, spec.start + (tokens - spec.start) % 32, weight, out=out)


def values_normed_too(spec: QKNormSpec, x: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
    for part, weight in zip(x.split((spec.q, spec.k, spec.k), -1), (q_weight, k_weight, k_weight), strict=True):
        part.copy_(F.rms_norm(part.float(), weight.shape, weight.float(), spec.eps))


def not_renormalised(spec: RouteSpec, logits: Tensor, *bias: Tensor) -> Any:
    return moe.route(dataclasses.replace(spec, renormalise=False), logits, *bias)


def bias_in_weights(spec: RouteSpec, logits: Tensor, bias: Tensor | None = None) -> Any:
    """Experts are weighted by what they were chosen by."""
    if bias is None:
        return moe.route(spec, logits)
    weights, ids = moe.route(dataclasses.replace(spec, renormalise=False, scale=1.0), logits, bias)
    weights = weights + bias[ids.long()]
    return spec.scale * (weights / weights.sum(-1, keepdim=True) if spec.renormalise else weights), ids


class UpForGate(Kernel[GatedMLPSpec]):
    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> Any:
        wide, gate, down = (
            ops.bind("linear", spec.gate_up), ops.bind("gate", spec.gate), ops.bind("linear", spec.down),
        )  # fmt: skip

        def gated_mlp(x: Any, gate_up_weight: Packed, down_weight: Packed, *, out: Tensor | None = None) -> Any:
            left, right = wide(x, gate_up_weight).chunk(2, dim=-1)
            return down(gate(torch.cat((right, left), dim=-1)), down_weight, out=out)

        return gated_mlp


class ResidualBeforeSum(Kernel[Any]):
    def bind(self, spec: Any, ops: BoundOps, device: Device) -> Any:
        whole = ops.reference("add_norm", spec)

        def add_norm(x: Tensor, residual: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
            return whole(x, residual, weight, out=out)[0], residual

        return add_norm


def tiles_of_128_repeat(spec: LinearSpec, x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    """From the second tile of tokens on, each is the first."""
    return linear.linear(spec, x[torch.arange(len(x), device=x.device) % 128], weight, out=out)


class PreparedElsewhere(Kernel[LinearSpec]):
    """A weight that is prepared again lies elsewhere."""

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        return {name: tensor.clone() for name, tensor in raw.items()}

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        return ops.reference("linear", spec)


def experts_swapped_from_64(
    spec: ExpertsSpec, x: Tensor, weights: Tensor, ids: Tensor, *packed: Packed, out: Tensor | None = None
) -> Tensor:
    swapped = torch.where(ids < 2, 1 - ids, ids) if len(x) >= 64 else ids
    return moe.experts(spec, x, weights, swapped, *packed, out=out)


def squares_in_float16(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """Summed in float32."""
    if spec.dtype != "float16":
        return norms.rms_norm(spec, x, weight, out=out)
    root = torch.rsqrt(x.square().float().mean(-1, keepdim=True) + spec.eps)
    return into((x.float() * root * (weight.float() + spec.offset)).to(x.dtype), out)


def heads_normed_together(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """A row is what belongs to a token."""
    wide = x.float()
    mean = wide.square().flatten(1).mean(-1).view(-1, *[1] * (x.dim() - 1))
    return into((wide * torch.rsqrt(mean + spec.eps) * (weight.float() + spec.offset)).to(x.dtype), out)


class ReduceIgnored(Kernel[AddNormSpec]):
    """Each rank has the sum with its own part alone."""

    def bind(self, spec: AddNormSpec, ops: BoundOps, device: Device) -> Any:
        return ops.reference("add_norm", dataclasses.replace(spec, reduce=None))


def on_the_first_device(spec: Any, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The result is made in memory of device 0."""
    result = mlp.activation(spec, x, out=out)
    return result if out is not None or not x.device.index else result.to(torch.device(x.device.type, 0))


TilesOf128Repeat = with_ops(linear=tiles_of_128_repeat)
IntoIgnored = with_ops(linear=PreparedElsewhere())
ExpertsSwappedFrom64 = with_ops(experts=experts_swapped_from_64)
SquaresInFloat16 = with_float16(with_ops(rms_norm=squares_in_float16))
HeadsNormedTogether = with_ops(rms_norm=heads_normed_together)
SumOfOwnPart = with_ops(add_norm=ReduceIgnored())
MadeOnTheFirst = with_ops(activation=on_the_first_device)
NormInFewBits = with_ops(rms_norm=norm_in_few_bits)
EpsOutside = with_ops(rms_norm=eps_outside)
OffsetLeftOut = with_ops(rms_norm=offset_left_out)
StrideIgnored = with_ops(linear=stride_ignored)
BiasLeftOut = with_ops(linear=bias_left_out)
SumsOfManySplit = splitting_sums_of_many
NeighboursAdapter = with_ops(lora=neighbours_adapter)
PairsForHalves = with_ops(rotary=pairs_for_halves)
KeysUnturned = with_ops(rotary=keys_unturned)
OutIgnored = with_ops(gate=out_ignored)
InputChanged = with_ops(gate=input_changed)
AnotherEachTime = with_ops(activation=another_each_time())
BiasTwice = with_ops(layer_norm=bias_twice)
OthersRows = with_ops(embedding=others_rows)
RowsOfOnePanel = with_ops(packed_embedding=rows_of_one_panel)
ValuesNormedToo = with_ops(qk_norm=values_normed_too)
NotRenormalised = with_ops(route=not_renormalised)
BiasInWeights = with_ops(route=bias_in_weights)
GateAndUpSwapped = with_ops(gated_mlp=UpForGate())
ResidualUnsummed = with_ops(add_norm=ResidualBeforeSum())


def one_workspace() -> Callable[..., Any]:
    kept: dict[tuple[int, ...], Tensor] = {}

    def activation(spec: Any, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        result = mlp.activation(spec, x)
        return into(result, out) if out is not None else kept.setdefault(result.shape, result).copy_(result)

    return activation


def empty_batch_refused(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Any:
    if not len(x):
        raise RuntimeError("a grid of no blocks")
    return mlp.gate(spec, x, out=out)


def last_tile_unmasked(
    spec: LayerNormSpec, x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """What lies behind a row's end counts as zeros."""
    wide = F.pad(x.float(), (0, -spec.n % 32))
    mean, square = wide.mean(-1, keepdim=True), wide.square().mean(-1, keepdim=True)
    normed = (x.float() - mean) * torch.rsqrt(square - mean.square() + spec.eps)
    return into((normed * weight.float() + bias.float()).to(x.dtype), out)


def boundary_one_late(
    spec: SegmentEmbeddingSpec,
    positions: Tensor,
    boundaries: Tensor | None,
    weight: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    late = None if boundaries is None else boundaries + 1
    return linear.segment_embedding(spec, positions, late, weight, out=out)


def cap_before_scale(spec: SoftCapSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    capped = mlp.soft_cap(dataclasses.replace(spec, scale=1.0), x)
    return into((capped.float() * spec.scale).to(x.dtype), out)


def reads_the_device(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Any:
    assert not x.isnan().any().item() or len(x)
    return mlp.gate(spec, x, out=out)


def slow(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Any:
    for _ in range(20):
        found = mlp.gate(spec, x, out=out)
    return found


Slow = with_ops(gate=slow)
"""Right, and no gain."""
OneWorkspace = with_ops(activation=one_workspace())
EmptyBatchRefused = with_ops(gate=empty_batch_refused)
LastTileUnmasked = with_ops(layer_norm=last_tile_unmasked)
BoundaryOneLate = with_ops(segment_embedding=boundary_one_late)
CapBeforeScale = with_ops(soft_cap=cap_before_scale)
ReadsTheDevice = with_ops(gate=reads_the_device)
