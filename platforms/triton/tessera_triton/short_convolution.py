"""The gated short convolution (LFM2, arXiv:2511.23404), for rows of any length."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tessera.platform import BoundOps, Caches, Device, LayerSpec, Mixer
from tessera_triton.convolution import Convolution
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.state import StateLayer, StatePlan, TritonState


class TritonShortConvolution(TritonState):
    name, kind = "triton-short-convolution", "short_convolution"

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return ShortConvolutionLayer(spec, weights, self.facts, self.launch)


class ShortConvolutionLayer(StateLayer):
    """x [T, 3 channels]: b, c and x."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], facts: DeviceFacts, launch: Launcher) -> None:
        super().__init__(spec, weights, facts, launch)
        self.convolution = Convolution(launch, spec.head_dim, self.taps, gated=True)

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        (conv,) = caches[self.spec.layer]
        bias = self.weights["bias"] if self.options["bias"] else None
        out = plan.blank(x, self.spec.head_dim, x.dtype)
        return self.convolution(x, self.weights["conv"], conv, plan, out, bias)
