"""The ops of the platform: native ones, and those for which torch has a fused or cheaper function than the
reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import BoundOps, Device, Kernel, OpSet, QKNormSpec, Reason, SoftCapSpec, replace
from tessera_cpu import native
from tessera_cpu.embedding import Embedding, PackedEmbedding, SegmentEmbedding
from tessera_cpu.experts import Experts, MoE
from tessera_cpu.gates import Activation, Gate, SigmoidGate
from tessera_cpu.linear import Linear
from tessera_cpu.lora import Lora
from tessera_cpu.mlp import GatedMLP
from tessera_cpu.norms import Add, AddLayerNorm, AddNorm, LayerNorm, NormAdd, RmsNorm
from tessera_cpu.output import into
from tessera_cpu.products import row_kernel
from tessera_cpu.rotary import Rotary
from tessera_cpu.routing import Route
from tessera_cpu.sampling import EditLogits, MaskLogits, Penalise, Sample, TakeLogits, TokenLogprobs


class QKNorm(Kernel[QKNormSpec]):
    def supports(self, spec: QKNormSpec) -> str | None:
        return "no sum over ranks between the squares and the roots" if spec.reduce is not None else None

    def bind(self, spec: QKNormSpec, ops: BoundOps, device: Device) -> Any:
        def qk_norm(x: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
            for part, weight in zip(x.split((spec.q, spec.k, spec.k), dim=-1), (q_weight, k_weight), strict=False):
                part.copy_(F.rms_norm(part, weight.shape, weight, spec.eps))

        return qk_norm


class SoftCap(Kernel[SoftCapSpec]):
    def supports(self, spec: SoftCapSpec) -> None:
        return None

    def batch_invariant(self, spec: SoftCapSpec) -> Reason | None:
        return super().batch_invariant(spec) if spec.cap else None

    def bind(self, spec: SoftCapSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if not spec.cap and library is not None and spec.dtype in native.ENTRIES:
            task = native.Scale(n=spec.n, factor=spec.scale, number=native.ENTRIES[spec.dtype])
            return row_kernel(library.tessera_cpu_scale, task)

        def soft_cap(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            if not spec.cap:
                return torch.mul(x, spec.scale, out=out)
            return into(x.float().mul(spec.scale / spec.cap).tanh_().mul_(spec.cap).to(x.dtype), out)

        return soft_cap


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
        soft_cap=SoftCap(),
        packed_embedding=PackedEmbedding(),
        segment_embedding=SegmentEmbedding(),
        qk_norm=QKNorm(),
        sigmoid_gate=SigmoidGate(),
        route=Route(),
        experts=Experts(),
        moe=MoE(),
        lora=Lora(),
        logprobs=TokenLogprobs(),
        mask_logits=MaskLogits(),
        take_logits=TakeLogits(),
        edit_logits=EditLogits(),
        penalise=Penalise(),
        sample=Sample(),
    )
