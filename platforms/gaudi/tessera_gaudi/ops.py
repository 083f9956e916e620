"""Ops by SynapseAI's fused kernels. What these do not take, or what a version lacks, runs on core's reference."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera.platform import (
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

NORM = "habana_frameworks.torch.hpex.normalization:FusedRMSNorm"
ROTATE = "habana_frameworks.torch.hpex.kernels:apply_rotary_pos_emb"
MODES = "habana_frameworks.torch.hpex.kernels:RotaryPosEmbeddingMode"
EXPERTS = "hpu::mixture_of_experts"
EXPERTS_TAKES = (
    "hidden_states", "expert_routing_table", "router_weights", "w12", "w3", "permuted_weights", "activation",
    "experts_min", "experts_max",
)  # fmt: skip

_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu"}  # SynapseAI's gelu is the approximate one


class RMSNorm(VendorKernel[NormSpec]):
    """op: FusedRMSNorm, which takes three dimensions."""

    def declines(self, spec: NormSpec) -> Reason | None:
        if spec.emit is not None:
            return "emits no quantized activations"
        return None if spec.offset == 0.0 else "no offset to the weight"

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            """x [..., n], weight [n] -> [..., n]."""
            normed: Tensor = self.op.apply(x if x.dim() == 3 else x[None], weight, spec.eps).view(x.shape)
            return normed if out is None else out.copy_(normed)

        return rms_norm


class Rotary(VendorKernel[RotarySpec]):
    """op: apply_rotary_pos_emb. modes: RotaryPosEmbeddingMode."""

    def __init__(self, op: Any, modes: Any) -> None:
        super().__init__(modes if isinstance(modes, str) else op)
        self.modes = modes

    def declines(self, spec: RotarySpec) -> Reason | None:
        return None

    def bind(self, spec: RotarySpec, ops: BoundOps, device: Device) -> Any:
        mode = self.modes.BLOCKWISE if spec.style == "half" else self.modes.PAIRWISE

        def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
            """q [T, H, D] and k [T, Hk, D] in place; positions [T]; cos_sin [positions, dim]."""
            cos, sin = (each.to(q.dtype) for each in rotary_angles(cos_sin, positions, spec.style))
            for heads in (q, k):
                turned = heads[..., : spec.dim]
                turned.copy_(self.op(turned, cos, sin, None, 0, mode))

        return rotary


class Experts(VendorKernel[ExpertsSpec]):
    """op: mixture_of_experts, which adds up the experts from experts_min to experts_max and ignores others."""

    def declines(self, spec: ExpertsSpec) -> Reason | None:
        if spec.gate_up.scheme is not None or spec.down.scheme is not None:
            return "no quantized weights"
        if spec.gate_up.bias or spec.down.bias:
            return "no biases"
        if not isinstance(spec.gate, GateSpec):
            return "no experts without gates, or with clamped ones"
        return None if spec.gate.activation in _ACTIVATIONS else f"no gate of {spec.gate.activation}"

    def bind(self, spec: ExpertsSpec, ops: BoundOps, device: Device) -> Any:
        assert isinstance(spec.gate, GateSpec)
        activation, last = _ACTIVATIONS[spec.gate.activation], spec.first + spec.gate_up.experts - 1
        divided: dict[int, tuple[Tensor, list[Tensor]]] = {}  # by id of a weight, held so that the id stays its own

        def of_each(weight: Tensor) -> list[Tensor]:
            """weight [E, ...] by expert, divided at its first launch alone."""
            if id(weight) not in divided:
                divided[id(weight)] = weight, list(weight.unbind())
            return divided[id(weight)][1]

        def experts(
            x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None
        ) -> Tensor:
            """x [T, k], weights and ids [T, K], gate_up [E, 2n, k], down [E, k, n] -> [T, k]."""
            mixed: Tensor = self.op(
                hidden_states=x, expert_routing_table=ids.long(), router_weights=weights.to(x.dtype),
                w12=of_each(gate_up["weight"]), w3=of_each(down["weight"]), permuted_weights=True,
                activation=activation, experts_min=spec.first, experts_max=last,
            )  # fmt: skip
            return mixed if out is None else out.copy_(mixed)

        return experts
