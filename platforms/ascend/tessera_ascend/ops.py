"""Norms, rotary embedding, gates and experts by torch_npu's ops. What these do not take, or what a version lacks, runs
on core's reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    AddNormSpec,
    BoundOps,
    Device,
    ExpertsSpec,
    GateSpec,
    NormSpec,
    Packed,
    Reason,
    RotarySpec,
    VendorKernel,
    rotary_angles,
)

NORM, GEMMA_NORM = "npu::npu_rms_norm", "npu::npu_gemma_rms_norm"
NORM_TAKES = ("input", "gamma", "epsilon")
ADD_NORM, ADD_NORM_TAKES = "npu::npu_add_rms_norm", ("x1", "x2", "gamma", "epsilon")
ROTATE, ROTATE_TAKES = "npu::npu_rotary_mul", ("input", "r1", "r2", "rotary_mode")
GATE, GATE_TAKES = "npu::npu_swiglu", ("input", "dim")
ROUTE_ROWS = "npu::npu_moe_init_routing_v2"
ROUTE_ROWS_TAKES = (
    "x", "expert_idx", "active_num", "expert_num", "expert_tokens_num_type", "expert_tokens_num_flag",
    "active_expert_range", "quant_mode",
)  # fmt: skip
PRODUCTS = "npu::npu_grouped_matmul"
PRODUCTS_TAKES = ("x", "weight", "group_list", "split_item", "group_type", "group_list_type")
ROWS_BACK, ROWS_BACK_TAKES = "npu::npu_moe_token_unpermute", ("permuted_tokens", "sorted_indices", "probs")

_COUNTS = 1  # expert_tokens_num_type, group_list_type: how many rows each expert has, not where they end
_ONE_OUTPUT = 2  # split_item
_BY_ROWS = 0  # group_type


def _plain_norm(spec: NormSpec) -> Reason | None:
    return None if spec.emit is None else "emits no quantized activations"


class RMSNorm(VendorKernel[NormSpec]):
    """op: of weights as they are. with_one: of weights to which 1 is added; or the reason why there is none."""

    def __init__(self, op: Any, with_one: Any) -> None:
        super().__init__(op)
        self.with_one = with_one

    def declines(self, spec: NormSpec) -> Reason | None:
        if spec.offset not in (0.0, 1.0):
            return "no offset to the weight but 1"
        if spec.offset and isinstance(self.with_one, str):
            return self.with_one
        return _plain_norm(spec)

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        op = self.with_one if spec.offset else self.op

        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            """x [..., n], weight [n] -> [..., n]."""
            normed: Tensor = op(input=x, gamma=weight, epsilon=spec.eps)[0]
            return normed if out is None else out.copy_(normed)

        return rms_norm


class AddNorm(VendorKernel[AddNormSpec]):
    """op: npu_add_rms_norm. The first norm of a model, which has no residual, and its sum over workers are core's."""

    def declines(self, spec: AddNormSpec) -> Reason | None:
        if spec.norm.offset:
            return "no offset to the weight"
        if spec.multiplier != 1.0:
            return "no multiplier"
        return _plain_norm(spec.norm)

    def bind(self, spec: AddNormSpec, ops: BoundOps, device: Device) -> Any:
        norm = ops.bind("rms_norm", spec.norm)
        group = ops.groups[spec.reduce] if spec.reduce is not None else None

        def add_norm(
            x: Tensor, residual: Tensor | None, weight: Tensor, *, out: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            """x and residual [T, n], weight [n] -> normed, x + residual."""
            whole = x if group is None else group.all_reduce(x)
            if residual is None:
                return norm(whole, weight, out=out), whole
            normed, _, both = self.op(x1=whole, x2=residual, gamma=weight, epsilon=spec.norm.eps)
            return normed if out is None else out.copy_(normed), both

        return add_norm


class Rotary(VendorKernel[RotarySpec]):
    """op: npu_rotary_mul, of [1, T, heads, dim]."""

    def declines(self, spec: RotarySpec) -> Reason | None:
        return None

    def bind(self, spec: RotarySpec, ops: BoundOps, device: Device) -> Any:
        mode = "half" if spec.style == "half" else "interleave"

        def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
            """q [T, H, D] and k [T, Hk, D] in place; positions [T]; cos_sin [positions, dim]."""
            cos, sin = (each.to(q.dtype)[None] for each in rotary_angles(cos_sin, positions, spec.style))
            for heads in (q, k):
                turned = heads[None, ..., : spec.dim]
                turned.copy_(self.op(input=turned.contiguous(), r1=cos, r2=sin, rotary_mode=mode))

        return rotary


class Gate(VendorKernel[GateSpec]):
    """op: npu_swiglu."""

    def declines(self, spec: GateSpec) -> Reason | None:
        if spec.activation != "silu":
            return f"no gate of {spec.activation}"
        return None if spec.emit is None else "emits no quantized activations"

    def bind(self, spec: GateSpec, ops: BoundOps, device: Device) -> Any:
        def gate(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            """x [T, 2n] -> [T, n]."""
            gated: Tensor = self.op(input=x, dim=-1)
            return gated if out is None else out.copy_(gated)

        return gate


class Experts(VendorKernel[ExpertsSpec]):
    """Rows sorted by expert, two grouped products around the gate, and rows back in order. op: npu_grouped_matmul.
    sort, back: npu_moe_init_routing_v2 and npu_moe_token_unpermute, or the reason why one is not there."""

    def __init__(self, op: Any, sort: Any, back: Any) -> None:
        super().__init__(next((one for one in (op, sort, back) if isinstance(one, str)), op))
        self.sort, self.back = sort, back

    def declines(self, spec: ExpertsSpec) -> Reason | None:
        if spec.gate_up.scheme is not None or spec.down.scheme is not None:
            return "no quantized weights"
        if spec.gate_up.bias or spec.down.bias:
            return "no biases"
        if not isinstance(spec.gate, GateSpec):
            return "no experts without gates, or with clamped ones"
        return None if spec.gate.dtype != "float32" else "no products in float32"

    def bind(self, spec: ExpertsSpec, ops: BoundOps, device: Device) -> Any:
        gate, number = ops.bind("gate", spec.gate), spec.gate_up.experts

        def product(x: Tensor, weight: Packed, counts: Tensor) -> Tensor:
            """x [rows, k], weight [E, n, k], counts [E] -> [rows, n]."""
            made: list[Tensor] = self.op(
                x=[x], weight=[weight["weight"].transpose(1, 2)], group_list=counts, split_item=_ONE_OUTPUT,
                group_type=_BY_ROWS, group_list_type=_COUNTS,
            )  # fmt: skip
            return made[0]

        def experts(
            x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None
        ) -> Tensor:
            """x [T, k], weights and ids [T, K], gate_up [E, 2n, k], down [E, k, n] -> [T, k]."""
            here = ids - spec.first
            inside = (here >= 0) & (here < number)
            rows, order, counts, _ = self.sort(
                x=x, expert_idx=torch.where(inside, here, 0), active_num=ids.numel(), expert_num=number,
                expert_tokens_num_type=_COUNTS, expert_tokens_num_flag=True, active_expert_range=[0, number],
                quant_mode=-1,
            )  # fmt: skip
            counts = counts.long()
            hidden = product(gate(product(rows, gate_up, counts)), down, counts)
            shares = torch.where(inside, weights, 0.0).to(x.dtype)
            mixed: Tensor = self.back(permuted_tokens=hidden, sorted_indices=order, probs=shares)
            return mixed if out is None else out.copy_(mixed)

        return experts
