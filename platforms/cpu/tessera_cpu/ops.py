"""Ops with torch: where torch has a fused or cheaper function, it replaces the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    ActivationSpec,
    BoundOps,
    Device,
    ExpertsSpec,
    GateSpec,
    Kernel,
    OpSet,
    Packed,
    QKNormSpec,
    Reason,
    RouteSpec,
    SoftCapSpec,
    replace,
)
from tessera_cpu import native
from tessera_cpu.embedding import Embedding, PackedEmbedding, SegmentEmbedding
from tessera_cpu.linear import Linear, expert_name, product_of, products_of
from tessera_cpu.lora import Lora
from tessera_cpu.mlp import GatedMLP
from tessera_cpu.norms import Add, AddLayerNorm, AddNorm, LayerNorm, NormAdd, RmsNorm
from tessera_cpu.output import into
from tessera_cpu.products import result_of, rows_apart
from tessera_cpu.rotary import Rotary
from tessera_cpu.sampling import EditLogits, MaskLogits, Penalise, Sample, TakeLogits, TokenLogprobs

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square_(),
}


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

    def batch_invariant(self, spec: GateSpec) -> Reason | None:
        return native.varying(spec.dtype)

    def bind(self, spec: GateSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is not None and spec.dtype == "bfloat16":
            return _native_gate(library, spec.n, native.ACTIVATIONS[spec.activation])
        activation = _ACTIVATIONS[spec.activation]

        def gate(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            left, right = x.chunk(2, dim=-1)
            return into(activation(left).mul_(right), out)

        return gate


def _native_gate(library: Any, n: int, activation: int) -> Any:
    task = native.Gate(n=n, activation=activation)

    def gate(x: Tensor, *, out: Tensor | None = None) -> Tensor:
        x = rows_apart(x)
        result = result_of(len(x), n, out)
        task.x, task.x_stride, task.rows = x.data_ptr(), x.stride(0), len(x)
        task.out, task.out_stride = result.data_ptr(), result.stride(0)
        library.tessera_cpu_gate(task)
        return result if out is None or out is result else out.copy_(result)

    return gate


class Activation(Kernel[ActivationSpec]):
    def supports(self, spec: ActivationSpec) -> None:
        return None

    def batch_invariant(self, spec: ActivationSpec) -> Reason | None:
        return native.varying_entries(spec.dtype)

    def bind(self, spec: ActivationSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is not None and spec.dtype in native.ENTRIES and spec.activation in native.ACTIVATIONS:
            return _native_activation(library, spec)
        function = _ACTIVATIONS[spec.activation]

        def activation(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            return into(function(x), out)

        return activation


def _native_activation(library: Any, spec: ActivationSpec) -> Any:
    number = native.ENTRIES[spec.dtype]
    task = native.Activate(n=spec.n, activation=native.ACTIVATIONS[spec.activation], number=number)

    def activation(x: Tensor, *, out: Tensor | None = None) -> Tensor:
        x = rows_apart(x)
        result = result_of(len(x), spec.n, out, x.dtype)
        task.x, task.x_stride, task.rows = x.data_ptr(), x.stride(0), len(x)
        task.out, task.out_stride = result.data_ptr(), result.stride(0)
        library.tessera_cpu_activate(task)
        return result if out is None or out is result else out.copy_(result)

    return activation


def soft_cap(spec: SoftCapSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    if not spec.cap:
        return torch.mul(x, spec.scale, out=out)
    return into(x.float().mul(spec.scale / spec.cap).tanh_().mul_(spec.cap).to(x.dtype), out)


def route(spec: RouteSpec, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
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


class Experts(Kernel[ExpertsSpec]):
    """Each expert computes only its own tokens. Reading ids on the host is free here, since it is the device."""

    def supports(self, spec: ExpertsSpec) -> Reason | None:
        found = (products_of(one) for one in (spec.gate_up, spec.down))
        return next((reason for reason in found if isinstance(reason, str)), None)

    def bind(self, spec: ExpertsSpec, ops: BoundOps, device: Device) -> Any:
        activation, gated = _ACTIVATIONS[spec.gate.activation], isinstance(spec.gate, GateSpec)
        wide, back = (product_of(one) for one in (spec.gate_up, spec.down))

        def experts(
            x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None
        ) -> Tensor:
            result = torch.zeros(x.shape, dtype=torch.float32)
            for expert in (ids.unique() - spec.first).tolist():
                if not 0 <= expert < spec.gate_up.experts:
                    continue
                name = expert_name(expert)
                tokens, choice = torch.where(ids == spec.first + expert)
                hidden = wide(x[tokens], gate_up[name])
                if gated:
                    left, right = hidden.chunk(2, dim=-1)
                    hidden = activation(left) * right
                else:
                    hidden = activation(hidden)
                mixed = back(hidden, down[name])
                result.index_add_(0, tokens, mixed.float() * weights[tokens, choice, None])
            return into(result.to(x.dtype), out)

        return experts


def kernels(reference: OpSet) -> OpSet:
    """The reference with native and torch kernels filled in."""
    return replace(
        reference,
        embedding=Embedding(),
        linear=Linear(),
        rms_norm=RmsNorm(),
        add_norm=AddNorm(),
        norm_add=NormAdd(),
        rotary=Rotary(),
        gate=Gate(),
        gated_mlp=GatedMLP(),
        layer_norm=LayerNorm(),
        add_layer_norm=AddLayerNorm(),
        activation=Activation(),
        add=Add(),
        soft_cap=soft_cap,
        packed_embedding=PackedEmbedding(),
        segment_embedding=SegmentEmbedding(),
        qk_norm=QKNorm(),
        route=route,
        experts=Experts(),
        lora=Lora(),
        logprobs=TokenLogprobs(),
        mask_logits=MaskLogits(),
        take_logits=TakeLogits(),
        edit_logits=EditLogits(),
        penalise=Penalise(),
        sample=Sample(),
    )
