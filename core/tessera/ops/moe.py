"""Mixture of experts: routes tokens to experts and runs the experts. Mixtral of experts, arXiv:2401.04088."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tessera.ops.linear import LinearSpec, linear, linear_inputs
from tessera.ops.mlp import GateSpec, gate
from tessera.ops.quantize import Activation, plain
from tessera.ops.tensors import DTYPES, EXPERTS, HIDDEN, into, torch_dtype
from tessera.platform.ops import BoundOps, HotCall, Op, Packed, TrialInputs

__all__ = ["ExpertsSpec", "MoESpec", "RouteSpec"]

_NARROW = 512  # intermediate size of an expert in the model at which speed is measured


# ---- route


@dataclass(frozen=True)
class RouteSpec:
    """Softmax over the experts, then the top_k largest. renormalise: their weights are scaled to sum to 1."""

    experts: int
    top_k: int
    renormalise: bool = True


def route(spec: RouteSpec, logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [T, all experts] act -> weights [T, K] float32; ids [T, K] int32, the largest first"""
    weights, ids = torch.softmax(logits.float(), dim=-1).topk(spec.top_k, dim=-1)
    if spec.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.to(torch.int32)


def _routes() -> Iterator[RouteSpec]:
    yield RouteSpec(8, 2)
    yield RouteSpec(5, 3, renormalise=False)


def _route_inputs(spec: RouteSpec, make: TrialInputs) -> tuple[Any, ...]:
    return (make.normal(make.tokens, spec.experts),)


# ---- experts


@dataclass(frozen=True)
class ExpertsSpec:
    """The gated MLPs of this rank's experts, which are numbers first..first+gate_up.experts of all. A token's result is
    the weighted sum over its experts on this rank."""

    gate_up: LinearSpec
    gate: GateSpec
    down: LinearSpec
    top_k: int
    first: int = 0


def experts(
    spec: ExpertsSpec,
    x: Activation,
    weights: Tensor,
    ids: Tensor,
    gate_up: Packed,
    down: Packed,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """x [T, k] act or Quantized; weights [T, K] float32; ids [T, K] int32 among all experts; gate_up Packed, [E, 2n,
    k]; down Packed, [E, k, n] -> [T, k] act; the sum over a token's experts on this rank

    Every expert computes every token, with weight 0 if it was not chosen, so that shapes are static."""
    x = plain(x, torch_dtype(spec.gate.dtype))
    wide, back = replace(spec.gate_up, experts=0), replace(spec.down, experts=0)
    total = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(spec.gate_up.experts):
        share = (weights * (ids == spec.first + expert)).sum(-1, keepdim=True)
        hidden = gate(spec.gate, linear(wide, x, _of(gate_up, expert)))
        total += share * linear(back, hidden, _of(down, expert)).float()
    return into(total.to(x.dtype), out)


def _of(weights: Packed, expert: int) -> Packed:
    return {name: tensor[expert] for name, tensor in weights.items()}


def _experts() -> Iterator[ExpertsSpec]:
    for dtype in DTYPES:
        yield ExpertsSpec(
            LinearSpec(88, 40, dtype, experts=5), GateSpec(44, dtype), LinearSpec(40, 44, dtype, experts=5), top_k=2
        )


def _experts_inputs(spec: ExpertsSpec, make: TrialInputs) -> tuple[Any, ...]:
    order = torch.rand(make.tokens, spec.gate_up.experts, generator=make.random).argsort(-1)
    ids = (order[:, : spec.top_k] + spec.first).to(torch.int32)
    weights = torch.rand(make.tokens, spec.top_k, generator=make.random)
    x = make.normal(make.tokens, spec.gate_up.k, dtype=spec.gate_up.dtype)
    return x, weights, ids, make.weight(spec.gate_up), make.weight(spec.down)


def _served_experts(dtype: str) -> ExpertsSpec:
    up = LinearSpec(2 * _NARROW, HIDDEN, dtype, experts=EXPERTS)
    return ExpertsSpec(up, GateSpec(_NARROW, dtype), LinearSpec(HIDDEN, _NARROW, dtype, experts=EXPERTS), top_k=2)


# ---- moe


@dataclass(frozen=True)
class MoESpec:
    """router, route and experts in one: x [T, hidden] -> [T, hidden], the weighted sum over a token's experts on this
    rank."""

    router: LinearSpec
    route: RouteSpec
    experts: ExpertsSpec


def moe(spec: MoESpec, ops: BoundOps) -> HotCall:
    """x [T, k] act; router_weight Packed, [all experts, k]; gate_up Packed, [E, 2n, k]; down Packed, [E, k, n] ->
    [T, k] act"""
    router = ops.bind("linear", spec.router)
    choose = ops.bind("route", spec.route)
    run = ops.bind("experts", spec.experts)

    def call(x: Tensor, router_weight: Packed, gate_up: Packed, down: Packed, *, out: Tensor | None = None) -> Tensor:
        weights, ids = choose(router(x, router_weight))
        result: Tensor = run(x, weights, ids, gate_up, down, out=out)
        return result

    return call


def _moes() -> Iterator[MoESpec]:
    for spec in _experts():
        yield MoESpec(LinearSpec(5, 40, spec.gate.dtype), RouteSpec(5, 2), spec)


def _moe_inputs(spec: MoESpec, make: TrialInputs) -> tuple[Any, ...]:
    return *linear_inputs(spec.router, make), make.weight(spec.experts.gate_up), make.weight(spec.experts.down)


OPS = (
    Op(
        "route", "moe", route,
        sample_specs=_routes, inputs=_route_inputs, served_spec=lambda _: RouteSpec(EXPERTS, 2),
    ),
    Op(
        "experts", "moe", experts,
        sample_specs=_experts, inputs=_experts_inputs, served_spec=_served_experts,
    ),
    Op(
        "moe", "moe", compose=moe, parts=("linear", "route", "experts"),
        sample_specs=_moes, inputs=_moe_inputs,
        served_spec=lambda dtype: MoESpec(
            LinearSpec(EXPERTS, HIDDEN, dtype), RouteSpec(EXPERTS, 2), _served_experts(dtype)
        ),
    ),
)  # fmt: skip
