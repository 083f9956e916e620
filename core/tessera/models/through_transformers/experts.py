"""Experts of a module of transformers. Its code routes; the op runs the experts where it can, else transformers' own
functions do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import grouped_mm_experts_forward

from tessera.layers.build import Build
from tessera.layers.product import product_parameter
from tessera.layers.weights import Parameter
from tessera.models.through_transformers.names import CheckpointNames
from tessera.ops import ExpertsSpec, GateSpec, LinearSpec
from tessera.ops.mlp import gate

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def exchange_experts(build: Build, names: CheckpointNames, module: Any, top_k: int) -> None:
    activation = _activation(module)
    if activation is None:
        module.tessera_experts = grouped_mm_experts_forward if _aligned(module) else type(module).forward.__wrapped__
    else:
        module.tessera_experts = BoundExperts(build, names, module, top_k, activation)
        module._parameters.clear()


class BoundExperts:
    """hidden [T, k], ids and weights [T, top_k] -> [T, k]."""

    def __init__(self, build: Build, names: CheckpointNames, module: Any, top_k: int, activation: str) -> None:
        experts, wide, k = module.gate_up_proj.shape
        asked = LinearSpec(wide, k, build.dtype, experts=experts)
        gate_up, self.gate_up = _parameter(build, names, module.gate_up_proj, asked)
        asked = LinearSpec(k, wide // 2, build.dtype, experts=experts)
        down, self.down = _parameter(build, names, module.down_proj, asked)
        spec = ExpertsSpec(gate_up, GateSpec(wide // 2, build.dtype, activation), down, top_k)
        self.call = build.ops.bind("experts", spec)

    def __call__(self, module: nn.Module, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        routed = weights.float(), ids.to(torch.int32)
        result: Tensor = self.call(hidden, *routed, self.gate_up.packed, self.down.packed)
        return result


def _parameter(build: Build, names: CheckpointNames, weight: Tensor, asked: LinearSpec) -> tuple[LinearSpec, Parameter]:
    joins = names.joins(weight)
    stacked = len(joins) > 1
    parts = {"weight": joins if stacked else joins[0]}
    return product_parameter(build, asked, parts, stacked=stacked)


def _aligned(module: Any) -> bool:
    """Whether grouped products take its weights; else its own code runs, an expert at a time."""
    sizes = [size * weight.element_size() for weight in module.parameters() for size in weight.shape[-2:]]
    return all(size % 16 == 0 for size in sizes)


def _activation(module: Any) -> str | None:
    """That of the gated experts which the op computes; None for others. Compared rather than read: the gate may be
    clamped or scaled."""
    if not module.has_gate or module.has_bias or module.is_transposed or not module.is_concatenated:
        return None
    if getattr(module, "has_post_expert_norm", False):
        return None
    wide = torch.linspace(-30.0, 30.0, 64).view(4, 16)
    try:
        theirs = module._apply_gate(wide)
    except (NotImplementedError, RuntimeError):  # it has weights of its own
        return None
    ours = {name: gate(GateSpec(8, "float32", name), wide) for name in ACTIVATIONS}
    return next((name for name, value in ours.items() if torch.allclose(theirs, torch.as_tensor(value))), None)
