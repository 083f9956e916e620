"""Kernels that do what a vendor's may: poison padding, write where they are told, emit and take scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.device import Device
from tessera.platform.ops import (
    BoundOps,
    EmbeddingSpec,
    GatedMLPSpec,
    HotCall,
    Kernel,
    LinearSpec,
    NormSpec,
    Packed,
    Quantized,
)
from tessera.platform.quantization import ActSpec
from tessera.testing.strict.graphs import Current

SCALED = ActSpec("float32", granularity="token")


class PoisonedEmbedding(Kernel[EmbeddingSpec]):
    """The reference, and within a launch NaN for every token that is padding."""

    def __init__(self, current: Current) -> None:
        self.current = current

    def bind(self, spec: EmbeddingSpec, ops: BoundOps, device: Device) -> HotCall:
        look_up = ops.reference("embedding", spec)

        def embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            launch = self.current.launch
            if launch is None:
                return look_up(tokens, weight, out=out)
            at = torch.arange(len(tokens))[:, None]
            start = launch.query_start_loc[:-1]
            real = ((at >= start) & (at < start + launch.query_lens)).any(-1, keepdim=True)
            poisoned = torch.where(real, look_up(tokens, weight), torch.nan)
            return poisoned if out is None else out.copy_(poisoned)

        return embedding


class BufferedLinear(Kernel[LinearSpec]):
    """A product that writes into the buffer it was given, and would have its float32 input scaled by powers of two
    (which loses nothing)."""

    def supports(self, spec: LinearSpec) -> str | None:
        return "experts are the reference's" if spec.experts else super().supports(spec)

    def wants(self, spec: LinearSpec) -> ActSpec | None:
        return SCALED if spec.dtype == "float32" else None

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> HotCall:
        def linear(x: Tensor | Quantized, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            data = x.data if isinstance(x, Quantized) else x
            if out is None:
                out = data.new_empty(len(data), spec.n)
            torch.mm(data, weight["weight"].T, out=out)
            if isinstance(x, Quantized):
                out.mul_(x.scale)
            if spec.bias:
                out.add_(weight["bias"])
            return out

        return linear


class ScalingNorm(Kernel[NormSpec]):
    """The reference, or, for who wants it so, each row divided by the power of two above its largest element."""

    def supports(self, spec: NormSpec) -> str | None:
        return None if spec.emit in (None, SCALED) else f"does not emit {spec.emit}"

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> HotCall:
        plain = ops.reference("rms_norm", NormSpec(spec.n, spec.dtype, spec.eps, spec.offset))

        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor | Quantized:
            normed: Tensor = plain(x, weight, out=out)
            if spec.emit is None:
                return normed
            scale = torch.exp2(torch.ceil(torch.log2(normed.abs().amax(-1, keepdim=True).clamp(min=1e-20))))
            return Quantized(normed / scale, scale)

        return rms_norm


class BufferedMLP(Kernel[GatedMLPSpec]):
    """A composite of a vendor's own: keeps one buffer for the wide activation and has the bound product write into
    it."""

    def wants(self, spec: GatedMLPSpec) -> ActSpec | None:
        return SCALED if spec.gate_up.dtype == "float32" else None

    def workspace(self, spec: GatedMLPSpec, max_tokens: int) -> int:
        return max_tokens * spec.gate_up.n * 4

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> HotCall:
        gate_up, down = ops.bind("linear", spec.gate_up), ops.bind("linear", spec.down)
        buffers: dict[int, Tensor] = {}

        def gated_mlp(
            x: Tensor | Quantized, gate_up_weight: Packed, down_weight: Packed, *, out: Tensor | None = None
        ) -> Any:
            data = x.data if isinstance(x, Quantized) else x
            wide = buffers.setdefault(len(data), data.new_empty(len(data), spec.gate_up.n))
            assert gate_up(x, gate_up_weight, out=wide) is wide
            left, right = wide.chunk(2, dim=-1)
            act = (
                F.silu(left)
                if spec.gate.activation == "silu"
                else F.gelu(left, approximate=_gelu(spec.gate.activation))
            )
            return down(act * right, down_weight, out=out)

        return gated_mlp


def _gelu(activation: str) -> str:
    return "tanh" if activation == "gelu_tanh" else "none"
