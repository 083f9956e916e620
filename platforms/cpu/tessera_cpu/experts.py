"""Mixtures of experts. Native ones read each expert that was chosen once; the others multiply with oneDNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActivationSpec, BoundOps, Device, ExpertsSpec, Kernel, MoESpec, Packed, Reason
from tessera_cpu import native
from tessera_cpu.gates import activated, gate_task
from tessera_cpu.linear import expert_name, product_of, products_of, taken
from tessera_cpu.output import into
from tessera_cpu.products import result_of, rows_apart


class Experts(Kernel[ExpertsSpec]):
    def supports(self, spec: ExpertsSpec) -> Reason | None:
        found = (products_of(one) for one in (spec.gate_up, spec.down))
        return next((reason for reason in found if isinstance(reason, str)), None)

    def batch_invariant(self, spec: ExpertsSpec) -> Reason | None:
        return native.varying_entries(spec.gate.dtype)

    def bind(self, spec: ExpertsSpec, ops: BoundOps, device: Device) -> Any:
        return native_experts(spec, in_order=ops.batch_invariant) if is_native(spec) else _by_expert(spec)


def is_native(spec: ExpertsSpec) -> bool:
    """Whether a spec that Experts supports has a native kernel."""
    return native.library() is not None and spec.gate.dtype in native.ENTRIES


def native_experts(spec: ExpertsSpec, *, in_order: bool, weighs_inputs: bool = False) -> Any:
    """The hot call of a spec for which is_native(). in_order: as for Products.bind(). weighs_inputs: as in MoESpec,
    where a token has all of its weights."""
    library, dtype = native.library(), getattr(torch, spec.gate.dtype)
    wide, back = (taken(one).stacked(one.n, one.k, in_order=in_order) for one in (spec.gate_up, spec.down))
    assert wide is not None
    assert back is not None
    task = native.Mixture(
        first=spec.first,
        experts=spec.gate_up.experts,
        wide=wide.task,
        back=back.task,
        wide_apart=wide.apart,
        back_apart=back.apart,
        gate=gate_task(spec.gate),
        wide_kind=wide.kind,
        back_kind=back.kind,
        gated=not isinstance(spec.gate, ActivationSpec),
        weighs_inputs=weighs_inputs,
    )

    def experts(
        x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None
    ) -> Tensor:
        x, weights, ids = rows_apart(x), weights.contiguous(), ids.contiguous()
        result = result_of(len(x), spec.down.n, out, dtype)
        wide.point(task.wide, gate_up)
        back.point(task.back, down)
        task.x, task.x_stride, task.tokens, task.top_k = x.data_ptr(), x.stride(0), len(x), weights.shape[1]
        task.weights, task.ids = weights.data_ptr(), ids.data_ptr()
        task.out, task.out_stride = result.data_ptr(), result.stride(0)
        library.tessera_cpu_mix(task)
        return result if out is None or out is result else out.copy_(result)

    return experts


def _by_expert(spec: ExpertsSpec) -> Any:
    """With torch: each expert computes only its own tokens. Reading ids on the host is free here, since it is the
    device."""
    act = activated(spec.gate)
    wide, back = (product_of(one) for one in (spec.gate_up, spec.down))

    def experts(
        x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None
    ) -> Tensor:
        result = torch.zeros(x.shape, dtype=torch.float32)
        for expert in (ids.unique() - spec.first).tolist():
            if not 0 <= expert < spec.gate_up.experts:
                continue
            tokens, choice = torch.where(ids == spec.first + expert)
            hidden = wide(x[tokens], *_of_expert(gate_up, expert))
            mixed = back(act(hidden), *_of_expert(down, expert))
            result.index_add_(0, tokens, mixed.float() * weights[tokens, choice, None])
        return into(result.to(x.dtype), out)

    return experts


def _of_expert(packed: Packed, expert: int) -> tuple[Tensor, Tensor | None]:
    """Its weight and bias."""
    return packed[expert_name(expert)], packed["bias"][expert] if "bias" in packed else None


class MoE(Kernel[MoESpec]):
    """Router, routing and experts, each of them native. The input is widened for a wider router, and weighed for
    experts that want that, natively too."""

    def supports(self, spec: MoESpec) -> Reason | None:
        reason = Experts().supports(spec.experts)
        if reason is None and not (is_native(spec.experts) and spec.router.dtype in (spec.dtype, "float32")):
            return "no native kernels"
        return reason

    def batch_invariant(self, spec: MoESpec) -> None:
        return None  # as its parts promise, which are asked

    def bind(self, spec: MoESpec, ops: BoundOps, device: Device) -> Any:
        router, choose = ops.bind("linear", spec.router), ops.bind("route", spec.route)
        if spec.weighs_inputs:
            run = native_experts(spec.experts, in_order=ops.batch_invariant, weighs_inputs=True)
        else:
            run = ops.bind("experts", spec.experts)
        widen = None if spec.router.dtype == spec.dtype else _widening(spec.router.k)

        def moe(
            x: Tensor,
            router_weight: Packed,
            gate_up: Packed,
            down: Packed,
            bias: Tensor | None = None,
            *,
            out: Tensor | None = None,
        ) -> Tensor:
            weights, ids = choose(router(x if widen is None else widen(x), router_weight), bias)
            result: Tensor = run(x, weights, ids, gate_up, down, out=out)
            return result

        return moe


def _widening(n: int) -> Any:
    library, task = native.library(), native.Widening(n=n)

    def widen(x: Tensor) -> Tensor:
        x, wide = rows_apart(x), torch.empty(len(x), n)
        task.x, task.x_stride, task.out, task.rows = x.data_ptr(), x.stride(0), wide.data_ptr(), len(x)
        library.tessera_cpu_widen(task)
        return wide

    return widen
