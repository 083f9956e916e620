"""The strict platform with one mistake each, of the kind that vendors make. FAULTS: what the kit must name."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    AttentionLayer,
    BoundOps,
    Caches,
    Device,
    EmbeddingSpec,
    GatedMLPSpec,
    GateSpec,
    Kernel,
    LayerNormSpec,
    LayerSpec,
    LinearSpec,
    NormSpec,
    OpSet,
    Packed,
    QKNormSpec,
    RotarySpec,
    RouteSpec,
    Sampled,
    SampleSpec,
    SamplingRows,
    replace,
)
from tessera.reference import core, moe, sampling
from tessera.reference.attention import PagedPlan
from tessera.testing import StrictPlatform
from tessera.testing.strict.attention import PoisonedNull, StrictAttention

Faulty = type[StrictPlatform]


def with_ops(**kernels: Any) -> Faulty:
    class Platform(StrictPlatform):
        def ops(self, reference: OpSet) -> OpSet:
            return replace(super().ops(reference), **kernels)

    return Platform


def with_layer(make: type[PoisonedNull]) -> Faulty:
    class Attention(StrictAttention):
        def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> AttentionLayer:
            return make(spec, weights, ops)

    class Platform(StrictPlatform):
        def attention_backends(self) -> list[StrictAttention]:
            return [Attention(self.current)]

    return Platform


def with_spec(change: Callable[[LayerSpec], Mapping[str, Any]]) -> Faulty:
    """A layer that reads its spec wrongly."""

    class Layer(PoisonedNull):
        def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
            super().__init__(dataclasses.replace(spec, **change(spec)), weights, ops)

    return with_layer(Layer)


def with_plan(change: Callable[[PagedPlan, Caches], Mapping[str, Any]]) -> Faulty:
    """A layer whose attend works from another plan."""

    class Layer(PoisonedNull):
        def attend(
            self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False
        ) -> Any:
            return super().attend(q, caches, dataclasses.replace(plan, **change(plan, caches)), out, lse)

    return with_layer(Layer)


# ---- attention -------------------------------------------------------------------------------------------------------

ScaleOfDim = with_spec(lambda spec: {"scale": 1 / spec.head_dim})
WindowIgnored = with_spec(lambda spec: {"window": None})
WindowTooLong = with_spec(lambda spec: {"window": spec.window and spec.window + 1})
SoftCapIgnored = with_spec(lambda spec: {"softcap": None})
SeesAhead = with_plan(lambda plan, caches: {"query": plan.query + 1})


def _to_the_end_of_the_block(plan: PagedPlan, caches: Caches) -> Mapping[str, Any]:
    size = caches[0][0].shape[1]
    blocks = plan.filled.unflatten(-1, (-1, size))
    return {"filled": blocks.any(-1, keepdim=True).expand_as(blocks).flatten(-2)}


StaleSlotsRead = with_plan(_to_the_end_of_the_block)


class _EdgeInBlockBefore(PoisonedNull):
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: PagedPlan) -> None:
        edge = (plan.offset == 0) & (plan.block > 0)
        super().write(k, v, caches, dataclasses.replace(plan, block=plan.block - edge.int()))


class _HeadsInTurn(PoisonedNull):
    """Key head = head % key heads."""

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        heads, key_heads = self.spec.num_heads, self.spec.num_kv_heads
        order = torch.tensor(sorted(range(heads), key=lambda head: (head % key_heads, head)))
        mixed = super().attend(q[:, order], caches, plan)[:, order.argsort()]
        return mixed if out is None else out.copy_(mixed)


class _PlanesSwapped(PoisonedNull):
    """Consistent in itself, but not what the layout says."""

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: PagedPlan) -> None:
        super().write(v, k, caches, plan)

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q, [(v, k) for k, v in caches], plan, out, lse)


BlockWrongAtEdge = with_layer(_EdgeInBlockBefore)
HeadsInTurn = with_layer(_HeadsInTurn)
PlanesSwapped = with_layer(_PlanesSwapped)


# ---- ops -------------------------------------------------------------------------------------------------------------


def norm_in_few_bits(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.eps)
    return core.into(x * root * (weight + spec.offset), out)


def eps_outside(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    wide = x.float()
    root = wide.square().mean(-1, keepdim=True).sqrt() + spec.eps
    return core.into((wide / root * (weight.float() + spec.offset)).to(x.dtype), out)


def offset_left_out(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    return core.rms_norm(dataclasses.replace(spec, offset=0.0), x, weight, out=out)


def stride_ignored(spec: LinearSpec, x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    return core.linear(spec, x.as_strided(x.shape, (spec.k, 1)), weight, out=out)


def bias_left_out(spec: LinearSpec, x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    return core.linear(spec, x, {"weight": weight["weight"]}, out=out)


def pairs_for_halves(spec: RotarySpec, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    core.rotary(dataclasses.replace(spec, style="pairs"), q, k, positions, cos_sin)


def keys_unturned(spec: RotarySpec, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    core.rotary(spec, q, k.clone(), positions, cos_sin)


def out_ignored(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Any:
    return core.gate(spec, x)


def input_changed(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Any:
    left = x[:, : spec.n]
    return core.into(left.copy_(core.gate(spec, x)) if spec.activation == "silu" else core.gate(spec, x), out)


def another_each_time() -> Callable[..., Any]:
    calls = itertools.count()

    def activation(spec: Any, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        return core.into(core.activation(spec, x) + 1e-7 * (next(calls) % 2), out)

    return activation


def bias_twice(spec: LayerNormSpec, x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
    return core.layer_norm(spec, x, weight, 2 * bias, out=out)


def others_rows(spec: EmbeddingSpec, tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Tokens of another rank get a row instead of zeros."""
    here = (tokens - spec.start).clamp(0, spec.rows - 1)
    return core.into(F.embedding(here, weight) * spec.scale, out)


def values_normed_too(spec: QKNormSpec, x: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
    for part, weight in zip(x.split((spec.q, spec.k, spec.k), -1), (q_weight, k_weight, k_weight), strict=True):
        part.copy_(F.rms_norm(part.float(), weight.shape, weight.float(), spec.eps))


def not_renormalised(spec: RouteSpec, logits: Tensor) -> Any:
    return moe.route(dataclasses.replace(spec, renormalise=False), logits)


def one_seed_for_all(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    return sampling.sample(spec, logits, rows._replace(seed=rows.seed[:1].expand(len(rows.seed))))


def top_k_one_too_few(spec: SampleSpec, logits: Tensor, rows: SamplingRows) -> Sampled:
    return sampling.sample(spec, logits, rows._replace(top_k=torch.where(rows.top_k > 1, rows.top_k - 1, rows.top_k)))


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


NormInFewBits = with_ops(rms_norm=norm_in_few_bits)
EpsOutside = with_ops(rms_norm=eps_outside)
OffsetLeftOut = with_ops(rms_norm=offset_left_out)
StrideIgnored = with_ops(linear=stride_ignored)
BiasLeftOut = with_ops(linear=bias_left_out)
PairsForHalves = with_ops(rotary=pairs_for_halves)
KeysUnturned = with_ops(rotary=keys_unturned)
OutIgnored = with_ops(gate=out_ignored)
InputChanged = with_ops(gate=input_changed)
AnotherEachTime = with_ops(activation=another_each_time())
BiasTwice = with_ops(layer_norm=bias_twice)
OthersRows = with_ops(embedding=others_rows)
ValuesNormedToo = with_ops(qk_norm=values_normed_too)
NotRenormalised = with_ops(route=not_renormalised)
OneSeedForAll = with_ops(sample=one_seed_for_all)
TopKOneTooFew = with_ops(sample=top_k_one_too_few)
GateAndUpSwapped = with_ops(gated_mlp=UpForGate())
ResidualUnsummed = with_ops(add_norm=ResidualBeforeSum())

FAULTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("ScaleOfDim", "WindowIgnored", "WindowTooLong", "SoftCapIgnored", "SeesAhead", "StaleSlotsRead"), "attention"
    ),
    **dict.fromkeys(("BlockWrongAtEdge", "HeadsInTurn"), "attention"),
    "PlanesSwapped": "cache layout",
    **dict.fromkeys(("NormInFewBits", "EpsOutside", "OffsetLeftOut"), "rms_norm"),
    **dict.fromkeys(("StrideIgnored", "BiasLeftOut"), "linear"),
    **dict.fromkeys(("PairsForHalves", "KeysUnturned"), "rotary"),
    **dict.fromkeys(("OutIgnored", "InputChanged"), "gate"),
    "AnotherEachTime": "activation",
    "BiasTwice": "layer_norm",
    "OthersRows": "embedding",
    "ValuesNormedToo": "qk_norm",
    "NotRenormalised": "route",
    **dict.fromkeys(("OneSeedForAll", "TopKOneTooFew"), "sample"),
    "GateAndUpSwapped": "gated_mlp",
    "ResidualUnsummed": "add_norm",
}
"""By class, the op or the part of the contract at fault."""
