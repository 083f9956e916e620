"""Routing of tokens to experts. One program routes one token: it holds the scores of all experts in registers and takes
the best one at a time, of equal ones the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, RouteSpec
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two

_EXPERTS = 4096  # that a program holds in registers
_SCORING = {"softmax": False, "sigmoid": True}


@triton.jit
def _first_best(values, free, number, none):
    """The largest of the free values, and the smallest number that has it; `none` if none is free."""
    best = tl.max(tl.where(free, values, float("-inf")))
    return best, tl.min(tl.where(free & (values == best), number, none))


@triton.jit
def _route(
    logits, logits_stride, bias, weights, ids, experts, groups, size, top_k, top_groups, group_top_k, scale,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, TOP_K: tl.constexpr,
    SIGMOID: tl.constexpr, BIAS: tl.constexpr, GROUPED: tl.constexpr, RENORMALISE: tl.constexpr,
):  # fmt: skip
    """Experts lie in groups of `size`, in registers as [GROUPS, SIZE]."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)[:, None]
    place = tl.arange(0, SIZE)[None, :]
    expert = group * size + place
    inside = (group < groups) & (place < size)
    value = tl.load(logits + row * logits_stride + expert, mask=inside, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = tl.div_rn(tl.full((GROUPS, SIZE), 1.0, tl.float32), 1.0 + tl.exp(-value))
    else:
        scores = tl.exp(value - tl.max(value))
        scores = tl.div_rn(scores, tl.sum(scores))
    rated = scores
    if BIAS:
        rated += tl.load(bias + expert, mask=inside, other=0.0)
    if GROUPED:
        left = inside
        total = tl.zeros((GROUPS, 1), tl.float32)
        for _ in range(group_top_k):
            best = tl.max(tl.where(left, rated, float("-inf")), 1)[:, None]
            total += best
            first = tl.min(tl.where(left & (rated == best), place, SIZE), 1)[:, None]
            left = left & (place != first)
        closed = group < groups
        for _ in range(top_groups):
            best, first = _first_best(total, closed, group, GROUPS)
            closed = closed & (group != first)
        rated = tl.where(closed, float("-inf"), rated)
    free = inside
    number = tl.arange(0, TOP_K)
    chosen = tl.zeros((TOP_K,), tl.int32)
    shares = tl.zeros((TOP_K,), tl.float32)
    for rank in range(top_k):
        best, first = _first_best(rated, free, expert, experts - 1)
        free = free & (expert != first)
        chosen = tl.where(number == rank, first, chosen)
        shares = tl.where(number == rank, tl.sum(tl.where(inside & (expert == first), scores, 0.0)), shares)
    if RENORMALISE:
        shares = tl.div_rn(shares, tl.sum(shares) + 1e-20)
    tl.store(weights + row * top_k + number, shares * scale, mask=number < top_k)
    tl.store(ids + row * top_k + number, chosen, mask=number < top_k)


@dataclass(frozen=True)
class Route(Kernel[RouteSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: RouteSpec) -> str | None:
        if spec.scoring not in _SCORING:
            return f"scores of '{spec.scoring}'"
        return f"{spec.experts} experts; kernels take up to {_EXPERTS}" if spec.experts > _EXPERTS else None

    def bind(self, spec: RouteSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        size = spec.experts // spec.groups
        held = power_of_two(spec.groups), power_of_two(size)

        def route(logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
            rows = logits if logits.stride(-1) == 1 else logits.contiguous()
            weights = torch.empty(len(rows), spec.top_k, dtype=torch.float32, device=rows.device)
            ids = torch.empty(len(rows), spec.top_k, dtype=torch.int32, device=rows.device)
            if len(rows):
                self.launch(
                    _route, (len(rows),), rows, rows.stride(0), weights if bias is None else bias, weights, ids,
                    spec.experts, spec.groups, size, spec.top_k, spec.top_groups, spec.group_top_k, float(spec.scale),
                    GROUPS=held[0], SIZE=held[1], TOP_K=power_of_two(spec.top_k), SIGMOID=_SCORING[spec.scoring],
                    BIAS=bias is not None, GROUPED=spec.groups > 1, RENORMALISE=spec.renormalise,
                    num_warps=min(max(held[0] * held[1] // 256, 1), 4),
                )  # fmt: skip
            return weights, ids

        return route
