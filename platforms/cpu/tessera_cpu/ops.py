"""Ops on torch's kernels: where a fused or cheaper torch function exists, it replaces the reference's definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    ActivationSpec,
    AddSpec,
    BoundOps,
    Device,
    EmbeddingSpec,
    ExpertsSpec,
    GateSpec,
    Kernel,
    LayerNormSpec,
    OpSet,
    Packed,
    QKNormSpec,
    Reason,
    RouteSpec,
    Sampled,
    SampleSpec,
    SamplingRows,
    SoftCapSpec,
    replace,
)
from tessera_cpu.activations import Activations
from tessera_cpu.linear import Linear, expert_name, product_of, products_of
from tessera_cpu.mlp import GatedMLP
from tessera_cpu.norms import AddNorm, RmsNorm
from tessera_cpu.output import into
from tessera_cpu.rotary import rotary

STRETCH = 512  # entries of the vocabulary

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def embedding(spec: EmbeddingSpec, tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    if spec.sharded:
        here = tokens - spec.start
        inside = (here >= 0) & (here < spec.rows)
        rows = F.embedding(here.clamp(0, spec.rows - 1), weight).mul_(inside[:, None])
    else:
        rows = F.embedding(tokens, weight)
    return into(rows if spec.scale == 1.0 else rows.mul_(spec.scale), out)


def layer_norm(spec: LayerNormSpec, x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
    return into(F.layer_norm(x, (spec.n,), weight, bias, spec.eps), out)


class QKNorm(Kernel[QKNormSpec]):
    def supports(self, spec: QKNormSpec) -> str | None:
        return "no sum over ranks between the squares and the roots" if spec.reduce is not None else None

    def bind(self, spec: QKNormSpec, ops: BoundOps, device: Device) -> Any:
        def qk_norm(x: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
            for part, weight in zip(x.split((spec.q, spec.k, spec.k), dim=-1), (q_weight, k_weight), strict=False):
                part.copy_(F.rms_norm(part, weight.shape, weight, spec.eps))

        return qk_norm


class Gate(Kernel[GateSpec]):
    def supports(self, spec: GateSpec) -> str | None:
        return "emits no quantised activations" if spec.emit is not None else None

    def bind(self, spec: GateSpec, ops: BoundOps, device: Device) -> Any:
        activation = _ACTIVATIONS[spec.activation]

        def gate(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            left, right = x.chunk(2, dim=-1)
            return into(activation(left).mul_(right), out)

        return gate


def activation(spec: ActivationSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    return into(_ACTIVATIONS[spec.activation](x), out)


def soft_cap(spec: SoftCapSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    if not spec.cap:
        return torch.mul(x, spec.scale, out=out)
    return into(x.float().mul(spec.scale / spec.cap).tanh_().mul_(spec.cap).to(x.dtype), out)


def add(spec: AddSpec, a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    return torch.add(a, b, out=out)


def route(spec: RouteSpec, logits: Tensor) -> tuple[Tensor, Tensor]:
    weights, ids = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(spec.top_k, dim=-1)
    if spec.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.to(torch.int32)


class Experts(Kernel[ExpertsSpec]):
    """Each expert sees only its own tokens; the host may read ids here, since it is the device."""

    def __init__(self, activations: Activations) -> None:
        self.activations = activations

    def supports(self, spec: ExpertsSpec) -> Reason | None:
        found = (products_of(one, self.activations) for one in (spec.gate_up, spec.down))
        return next((reason for reason in found if isinstance(reason, str)), None)

    def bind(self, spec: ExpertsSpec, ops: BoundOps, device: Device) -> Any:
        activation = _ACTIVATIONS[spec.gate.activation]
        wide, back = (product_of(one, self.activations) for one in (spec.gate_up, spec.down))

        def experts(
            x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None
        ) -> Tensor:
            result = torch.zeros(x.shape, dtype=torch.float32)
            for expert in (ids.unique() - spec.first).tolist():
                if not 0 <= expert < spec.gate_up.experts:
                    continue
                name = expert_name(expert)
                tokens, choice = torch.where(ids == spec.first + expert)
                left, right = wide(x[tokens], gate_up[name]).chunk(2, dim=-1)
                mixed = back(activation(left) * right, down[name])
                result.index_add_(0, tokens, mixed.float() * weights[tokens, choice, None])
            return into(result.to(x.dtype), out)

        return experts


class Sample(Kernel[SampleSpec]):
    """Greedy rows without a float32 copy of the logits; the rest as the reference has it."""

    def supports(self, spec: SampleSpec) -> str | None:
        return None if spec.greedy and spec.logprobs < 0 else "only greedy rows without log probabilities"

    def bind(self, spec: SampleSpec, ops: BoundOps, device: Device) -> Any:
        def sample(logits: Tensor, rows: SamplingRows) -> Sampled:
            return Sampled(first_largest(logits).to(torch.int32))

        return sample


def first_largest(logits: Tensor) -> Tensor:
    """[S, vocab] -> [S], the first of each row's largest. torch's argmax looks at one element after the other, its amax
    at many at once: so the largest of each stretch, then the place within the best stretch."""
    vocab = logits.shape[-1]
    whole = vocab // STRETCH * STRETCH
    best = logits[:, :whole].unflatten(-1, (-1, STRETCH)).amax(-1)
    if whole < vocab:
        best = torch.cat((best, logits[:, whole:].amax(-1, keepdim=True)), dim=-1)
    start = best.argmax(-1, keepdim=True) * STRETCH
    places = (start + torch.arange(STRETCH)).clamp_(max=vocab - 1)
    return start[:, 0] + logits.gather(-1, places).argmax(-1)


def kernels(reference: OpSet) -> OpSet:
    """The reference with the native kernels and torch's in it."""
    activations = Activations()
    return replace(
        reference,
        embedding=embedding,
        linear=Linear(activations),
        rms_norm=RmsNorm(),
        add_norm=AddNorm(),
        rotary=rotary,
        gate=Gate(),
        gated_mlp=GatedMLP(activations),
        layer_norm=layer_norm,
        activation=activation,
        add=add,
        soft_cap=soft_cap,
        qk_norm=QKNorm(),
        route=route,
        experts=Experts(activations),
        sample=Sample(),
    )
