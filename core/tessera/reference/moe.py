"""Group moe: routing and experts. Mixtral of experts, arXiv:2401.04088."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tessera.platform.ops import BoundOps, ExpertsSpec, HotCall, MoESpec, Packed, RouteSpec
from tessera.reference.core import gate, into, linear
from tessera.reference.dtypes import torch_dtype
from tessera.reference.quantized import Activation, plain


def route(spec: RouteSpec, logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [T, experts] -> weights [T, top_k] float32 and ids [T, top_k] int32, the largest first."""
    weights, ids = torch.softmax(logits.float(), dim=-1).topk(spec.top_k, dim=-1)
    if spec.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.to(torch.int32)


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
    """x [T, k], gate_up [experts, 2n, k], down [experts, k, n] -> [T, k]. Every expert sees every token, weighted 0
    where it was not chosen: static shapes."""
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


def experts_oracle(spec: ExpertsSpec, x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed) -> Tensor:
    """The clear definition: each token through each of its experts."""
    result = torch.zeros_like(x, dtype=torch.float32)
    for token in range(len(x)):
        for weight, chosen in zip(weights[token], ids[token].tolist(), strict=True):
            here = chosen - spec.first
            if 0 <= here < spec.gate_up.experts:
                hidden = gate(spec.gate, gate_up["weight"][here] @ x[token])
                assert isinstance(hidden, Tensor)
                result[token] += weight * (down["weight"][here] @ hidden).float()
    return result.to(x.dtype)


def moe(spec: MoESpec, ops: BoundOps) -> HotCall:
    """(x [T, k], router, gate_up, down) -> [T, k]: linear, route, experts."""
    router = ops.bind("linear", spec.router)
    choose = ops.bind("route", spec.route)
    run = ops.bind("experts", spec.experts)

    def call(x: Tensor, router_weight: Packed, gate_up: Packed, down: Packed, *, out: Tensor | None = None) -> Tensor:
        weights, ids = choose(router(x, router_weight))
        result: Tensor = run(x, weights, ids, gate_up, down, out=out)
        return result

    return call
