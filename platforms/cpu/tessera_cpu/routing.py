"""The choice of a token's experts: native for logits of bfloat16 and float32, otherwise with torch."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, Reason, RouteSpec
from tessera_cpu import native
from tessera_cpu.products import rows_apart

_NUMBERS = MappingProxyType({torch.bfloat16: native.BF16_ENTRY, torch.float32: native.FLOAT_ENTRY})


class Route(Kernel[RouteSpec]):
    def supports(self, spec: RouteSpec) -> None:
        return None

    def batch_invariant(self, spec: RouteSpec) -> Reason | None:
        return None if _is_native(spec) else native.varying("bfloat16") or "torch's kernels route among so many experts"

    def bind(self, spec: RouteSpec, ops: BoundOps, device: Device) -> Any:
        def with_torch(logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
            return route(spec, logits, bias)

        return _native_route(native.library(), spec, with_torch) if _is_native(spec) else with_torch


def _is_native(spec: RouteSpec) -> bool:
    known = spec.scoring in ("softmax", "sigmoid")
    return known and native.library() is not None and spec.experts <= native.MAX_EXPERTS


def _native_route(library: Any, spec: RouteSpec, otherwise: Any) -> Any:
    task = native.Routing(
        experts=spec.experts,
        top_k=spec.top_k,
        groups=spec.groups,
        top_groups=spec.top_groups,
        group_top_k=spec.group_top_k,
        scale=spec.scale,
        renormalised=spec.renormalise,
        sigmoid=spec.scoring == "sigmoid",
    )

    def choose(logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if logits.dtype not in _NUMBERS:
            chosen: tuple[Tensor, Tensor] = otherwise(logits, bias)
            return chosen
        logits = rows_apart(logits)
        weights = torch.empty(len(logits), spec.top_k)
        ids = torch.empty(len(logits), spec.top_k, dtype=torch.int32)
        task.logits, task.stride, task.rows = logits.data_ptr(), logits.stride(0), len(logits)
        task.bias = None if bias is None else bias.data_ptr()
        task.weights, task.ids, task.number = weights.data_ptr(), ids.data_ptr(), _NUMBERS[logits.dtype]
        library.tessera_cpu_route(task)
        return weights, ids

    return choose


def route(spec: RouteSpec, logits: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    if spec.scoring == "sparsemixer":
        return _one_by_one(spec, logits.float())
    scores = logits.float().sigmoid() if spec.scoring == "sigmoid" else logits.softmax(-1, dtype=torch.float32)
    rated = scores if bias is None else scores + bias
    if spec.groups > 1:
        rated = _of_the_best_groups(spec, rated)
    ids = _best(rated, spec.top_k)
    weights = scores.gather(-1, ids)
    if spec.renormalise:
        weights /= weights.sum(-1, keepdim=True).add_(1e-20)  # all may be 0
    return weights.mul_(spec.scale), ids.to(torch.int32)


def _best(values: Tensor, number: int) -> Tensor:
    """The places of the largest values, of equal ones the first."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :number]


def _of_the_best_groups(spec: RouteSpec, rated: Tensor) -> Tensor:
    """The scores of those groups' experts, and minus infinity for the others."""
    grouped = rated.unflatten(-1, (spec.groups, -1))
    best = _best(grouped.topk(spec.group_top_k, dim=-1).values.sum(-1), spec.top_groups)[..., None]
    open_groups = torch.full_like(grouped, -torch.inf)
    inside = best.expand(*best.shape[:-1], grouped.shape[-1])
    return open_groups.scatter_(-2, inside, grouped.gather(-2, inside)).flatten(-2)


def _one_by_one(spec: RouteSpec, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Of SparseMixer: an expert's weight is its share among those that are left and near it."""
    left, size, chosen = logits.clone(), logits.abs(), []
    for _ in range(spec.top_k):
        place = _best(left, 1)
        best = left.gather(-1, place)
        far = (best - logits).div_(size.clamp(min=best)) > spec.margin
        chosen.append((left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, place), place))
        left.scatter_(-1, place, -torch.inf)
    weights, ids = (torch.cat(parts, dim=-1) for parts in zip(*chosen, strict=True))
    return weights.mul_(spec.scale), ids.to(torch.int32)
