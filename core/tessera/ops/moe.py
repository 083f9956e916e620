"""Mixture of experts: routes tokens to experts and runs the experts. Mixtral of experts, arXiv:2401.04088."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tessera.ops.linear import LinearSpec, linear
from tessera.ops.mlp import ActivationSpec, GateSpec, activation, gate
from tessera.ops.quantize import Activation, plain
from tessera.ops.tensors import DTYPES, EXPERTS, HIDDEN, into, torch_dtype
from tessera.platform.ops import BoundOps, HotCall, Op, Packed, TrialInputs

__all__ = ["ClampedGateSpec", "ExpertsSpec", "MoESpec", "RouteSpec"]

_NARROW = 512  # intermediate size of an expert in the model at which speed is measured


# ---- route


@dataclass(frozen=True)
class RouteSpec:
    """The top_k experts with the best scores, and their weights. Of equal scores, the expert or group with the lower
    number is better.

    DeepSeek-V2, arXiv:2405.04434 (groups, scored by their best); DeepSeek-V3, arXiv:2412.19437 (sigmoid, bias, groups
    scored by their best two); GRIN, arXiv:2409.12136 (SparseMixer).
    """

    experts: int
    top_k: int
    renormalise: bool = True  # weights are scaled to sum to 1, except that they stay 0 if all are 0
    # how logits become scores, "softmax" over the experts or "sigmoid" of each; "sparsemixer": the logits are the
    # scores, and an expert's weight is its share in a softmax over those that are not chosen before it and come near it
    scoring: str = "softmax"
    bias: bool = False  # experts are chosen by their scores plus a bias, but weighted by their scores
    groups: int = 1  # of consecutive experts, of equal size
    top_groups: int = 1  # only experts of so many best groups can be chosen, whatever their scores
    group_top_k: int = 1  # a group's score is the sum of so many of its largest (biased) scores
    scale: float = 1.0  # multiplies them afterwards
    # of "sparsemixer": how much smaller a logit near another is, at most, as a share of the larger absolute value
    margin: float = 0.0


_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
}
_LEAST = 1e-20  # added to a sum of weights: too small to change one that is not 0


def route(spec: RouteSpec, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """logits [T, all experts] act; bias [all experts] float32 if spec.bias -> weights [T, K] float32; ids [T, K] int32,
    the best first"""
    if spec.scoring == "sparsemixer":
        return _one_by_one(spec, logits.float())
    scores = _SCORES[spec.scoring](logits.float())
    rated = scores if bias is None else scores + bias
    if spec.groups > 1:
        rated = _of_the_best_groups(spec, rated)
    ids = _best(rated, spec.top_k)
    weights = scores.gather(-1, ids)
    if spec.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + _LEAST)
    return weights * spec.scale, ids.to(torch.int32)


def _one_by_one(spec: RouteSpec, logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [T, all experts] float32 -> as route(). Where both are 0, two logits are near each other."""
    left, weights, ids = logits, [], []
    for _ in range(spec.top_k):
        place = _best(left, 1)
        best = left.gather(-1, place)
        far = (best - logits) / torch.maximum(logits.abs(), best) > spec.margin
        weights.append(torch.softmax(left.masked_fill(far, -torch.inf), dim=-1).gather(-1, place))
        ids.append(place)
        left = left.scatter(-1, place, -torch.inf)
    return torch.cat(weights, dim=-1) * spec.scale, torch.cat(ids, dim=-1).to(torch.int32)


def _best(values: Tensor, number: int) -> Tensor:
    """The places [..., number] of the largest values, of equal ones the first. topk promises no order of equal ones."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :number]


def _of_the_best_groups(spec: RouteSpec, rated: Tensor) -> Tensor:
    """Minus infinity for experts of other groups: a biased score may be negative, so 0 could win."""
    grouped = rated.unflatten(-1, (spec.groups, -1))
    best = _best(grouped.topk(spec.group_top_k, dim=-1).values.sum(-1), spec.top_groups)
    closed = torch.ones(grouped.shape[:-1], dtype=torch.bool, device=rated.device).scatter(-1, best, False)
    return grouped.masked_fill(closed[..., None], -torch.inf).flatten(-2)


def _routes() -> Iterator[RouteSpec]:
    yield RouteSpec(8, 2)
    yield RouteSpec(5, 3, renormalise=False)
    yield RouteSpec(7, 3, bias=True)
    yield RouteSpec(11, 3, scoring="sigmoid", scale=2.5)
    yield RouteSpec(11, 3, scoring="sigmoid", bias=True)
    yield RouteSpec(15, 4, renormalise=False, groups=5, top_groups=3, scale=16.0)
    yield RouteSpec(21, 4, scoring="sigmoid", bias=True, groups=7, top_groups=3, group_top_k=2, scale=2.5)
    yield RouteSpec(10, 4, renormalise=False, scoring="sigmoid", bias=True, groups=2, group_top_k=2)
    yield RouteSpec(9, 2, renormalise=False, scoring="sparsemixer", margin=0.6)


def _large_routes() -> Iterator[tuple[RouteSpec, int]]:
    """More experts than a tile or a word has."""
    yield RouteSpec(70, 6), 19
    yield RouteSpec(300, 10), 19
    yield RouteSpec(256, 8, scoring="sigmoid", bias=True, groups=8, top_groups=4, group_top_k=2, scale=2.5), 19


def _route_inputs(spec: RouteSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Every fifth token's logits are 0, so that all of its scores are equal; biases are multiples of 1/8, so that sums
    of such scores are exact. Some logits are so large that their exponents are out of range, unless the largest is
    subtracted, as a softmax does."""
    logits = make.normal(make.tokens, spec.experts)
    logits[3::5] = 0.0
    if spec.scoring == "softmax":
        logits[1::5] += 100
    return (logits, (make.normal(spec.experts) * 4).round() / 8) if spec.bias else (logits,)


# ---- experts


@dataclass(frozen=True)
class ClampedGateSpec:
    """a * sigmoid(slope * a) * (b + 1), where a is x[:, :n], at most limit, and b is x[:, n:], from -limit to limit; in
    float32, rounded once. The gpt-oss model card, arXiv:2508.10925."""

    n: int
    dtype: str
    limit: float
    slope: float


@dataclass(frozen=True)
class ExpertsSpec:
    """The MLPs of this rank's experts, which are numbers first..first+gate_up.experts of all. A token's result is the
    weighted sum over its experts on this rank. gate: an ActivationSpec, if the MLPs have no gate; then gate_up is their
    first product alone. Both products may have biases."""

    gate_up: LinearSpec
    gate: GateSpec | ClampedGateSpec | ActivationSpec
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
    k], or [E, n, k] without gates; down Packed, [E, k, n] -> [T, k] act; the sum over a token's experts on this rank

    Biases are [E, 2n], or [E, n], and [E, k]. Every expert computes every token, with weight 0 if it was not chosen, so
    that shapes are static."""
    x = plain(x, torch_dtype(spec.gate.dtype))
    wide, back = replace(spec.gate_up, experts=0), replace(spec.down, experts=0)
    total = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(spec.gate_up.experts):
        share = (weights * (ids == spec.first + expert)).sum(-1, keepdim=True)
        hidden = _activated(spec.gate, linear(wide, x, _of_expert(gate_up, expert)))
        total += share * linear(back, hidden, _of_expert(down, expert)).float()
    return into(total.to(x.dtype), out)


def _activated(spec: GateSpec | ClampedGateSpec | ActivationSpec, x: Tensor) -> Activation:
    if isinstance(spec, ClampedGateSpec):
        return _clamped(spec, x)
    return gate(spec, x) if isinstance(spec, GateSpec) else activation(spec, x)


def _clamped(spec: ClampedGateSpec, x: Tensor) -> Tensor:
    left, right = x.float().chunk(2, dim=-1)
    left, right = left.clamp(max=spec.limit), right.clamp(-spec.limit, spec.limit)
    return (left * torch.sigmoid(spec.slope * left) * (right + 1.0)).to(x.dtype)


def _of_expert(weights: Packed, expert: int) -> Packed:
    return {name: tensor[expert] for name, tensor in weights.items()}


def _experts() -> Iterator[ExpertsSpec]:
    for dtype in DTYPES:
        yield ExpertsSpec(
            LinearSpec(88, 40, dtype, experts=5), GateSpec(44, dtype), LinearSpec(40, 44, dtype, experts=5), top_k=2
        )
        up, down = LinearSpec(44, 40, dtype, experts=5), LinearSpec(40, 44, dtype, experts=5)
        yield ExpertsSpec(up, ActivationSpec(44, dtype, "relu2"), down, top_k=2)
        up = LinearSpec(88, 40, dtype, bias=True, experts=5)
        yield ExpertsSpec(up, ClampedGateSpec(44, dtype, 0.75, 1.702), replace(down, bias=True), top_k=2)
        up = LinearSpec(88, 40, dtype, experts=5)
        yield ExpertsSpec(up, GateSpec(44, dtype), down, top_k=4, first=3)


def _all_experts(spec: ExpertsSpec) -> int:
    """Of all ranks: in samples, as many come behind a rank's as before them."""
    return spec.gate_up.experts + 2 * spec.first


def _large_experts() -> Iterator[tuple[ExpertsSpec, int]]:
    """Other activations, many experts, and inner sizes at which kernels change their path."""
    for dtype in DTYPES:
        for number, n, k, name in ((5, 44, 40, "gelu_tanh"), (70, 8, 16, "silu"), (2, 1032, 16, "silu")):
            up, down = LinearSpec(2 * n, k, dtype, experts=number), LinearSpec(k, n, dtype, experts=number)
            yield ExpertsSpec(up, GateSpec(n, dtype, name), down, top_k=min(number, 4)), 19


def _experts_inputs(spec: ExpertsSpec, make: TrialInputs) -> tuple[Any, ...]:
    order = torch.rand(make.tokens, _all_experts(spec), generator=make.random).argsort(-1)
    ids = order[:, : spec.top_k].to(torch.int32)
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
    rank. The router may have a wider dtype than the experts; x is converted to it.

    weighs_inputs: a token's weight for an expert multiplies what this expert is given of it, not the result, and its
    results are added as they are (Llama 4). Each expert of a token is then a row of its own, so that experts.top_k is
    1."""

    router: LinearSpec
    route: RouteSpec
    experts: ExpertsSpec
    weighs_inputs: bool = False

    @property
    def dtype(self) -> str:
        """That of activations."""
        return self.experts.gate.dtype


def moe(spec: MoESpec, ops: BoundOps) -> HotCall:
    """x [T, k] act; router_weight Packed, [all experts, k]; gate_up Packed, [E, 2n, k], or [E, n, k] without gates;
    down Packed, [E, k, n]; bias [all experts] float32 if spec.route.bias -> [T, k] act"""
    router = ops.bind("linear", spec.router)
    choose = ops.bind("route", spec.route)
    run = ops.bind("experts", spec.experts)
    wide = torch_dtype(spec.router.dtype)

    def call(
        x: Tensor,
        router_weight: Packed,
        gate_up: Packed,
        down: Packed,
        bias: Tensor | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        logits = router(x.to(wide), router_weight)
        weights, ids = choose(logits) if bias is None else choose(logits, bias)
        if spec.weighs_inputs:
            return into(_of_weighed_inputs(run, x, weights, ids, gate_up, down), out)
        result: Tensor = run(x, weights, ids, gate_up, down, out=out)
        return result

    return call


def _of_weighed_inputs(run: HotCall, x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed) -> Tensor:
    """x [T, k] act; weights, ids [T, K] -> [T, k] act"""
    rows = (x[:, None] * weights[..., None]).to(x.dtype).flatten(0, 1)
    ones = weights.new_ones(weights.numel(), 1)
    result: Tensor = run(rows, ones, ids.reshape(-1, 1), gate_up, down)
    return result if weights.shape[1] == 1 else result.view(*weights.shape, x.shape[-1]).sum(1)


def _moes() -> Iterator[MoESpec]:
    for spec in _experts():
        number, top_k = _all_experts(spec), spec.top_k
        yield MoESpec(LinearSpec(number, 40, spec.gate.dtype), RouteSpec(number, top_k), spec)
        chosen = RouteSpec(number, top_k, scoring="sigmoid", bias=True, scale=2.5)
        yield MoESpec(LinearSpec(number, 40, "float32"), chosen, spec)
        chosen = RouteSpec(number, top_k, renormalise=False, scoring="sigmoid")
        yield MoESpec(LinearSpec(number, 40, spec.gate.dtype), chosen, replace(spec, top_k=1), weighs_inputs=True)


def _large_moes() -> Iterator[tuple[MoESpec, int]]:
    for spec, tokens in _large_experts():
        number, k = spec.gate_up.experts, spec.gate_up.k
        if number > 2:  # in 16 bits, many logits of a router are equal
            yield MoESpec(LinearSpec(number, k, "float32"), RouteSpec(number, spec.top_k), spec), tokens


def _moe_inputs(spec: MoESpec, make: TrialInputs) -> tuple[Any, ...]:
    x, router = make.normal(make.tokens, spec.router.k, dtype=spec.dtype), make.weight(spec.router)
    weights = make.weight(spec.experts.gate_up), make.weight(spec.experts.down)
    bias = (make.normal(spec.route.experts),) if spec.route.bias else ()
    return x, router, *weights, *bias


OPS = (
    Op(
        "route", "moe", route,
        sample_specs=_routes, large_samples=_large_routes, inputs=_route_inputs,
        served_spec=lambda _: RouteSpec(EXPERTS, 2),
    ),
    Op(
        "experts", "moe", experts,
        sample_specs=_experts, large_samples=_large_experts, inputs=_experts_inputs,
        served_spec=_served_experts,
    ),
    Op(
        "moe", "moe", compose=moe, parts=("linear", "route", "experts"),
        sample_specs=_moes, large_samples=_large_moes, inputs=_moe_inputs,
        served_spec=lambda dtype: MoESpec(
            LinearSpec(EXPERTS, HIDDEN, dtype), RouteSpec(EXPERTS, 2), _served_experts(dtype)
        ),
    ),
)  # fmt: skip
