"""The gated short convolution over a StateSpec: the reference definition of a mixer that sees the last few tokens alone
(LFM2, arXiv:2511.23404).

A token has for each channel b, c and x; y_t = c_t (w_1 b_(t-n+1) x_(t-n+1) + ... + w_n b_t x_t + bias).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.reference.convolution import causal_convolution
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "short_convolution"


class ReferenceShortConvolution(StateBackend):
    name = "reference_short_convolution"
    kind = KIND

    def bind(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> ShortConvolutionLayer:
        return ShortConvolutionLayer(spec, weights)


class ShortConvolutionLayer(StateLayer):
    """x [T, 3 channels]: b, c and x. The channels are the elements of the spec's only head. Plane: conv [channels,
    kernel - 1], the last products of b and x. The option "bias" is 1 if there is one."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights, self.biased = spec, weights, bool(dict(spec.options)["bias"])

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        (conv,) = caches[self.spec.layer]
        before, after, inputs = laid.chunk(3, dim=-1)
        mixed = self._convolved(before * inputs, conv, grid)
        if self.biased:
            mixed = mixed + self.weights["bias"]
        return after * mixed

    def _convolved(self, inputs: Tensor, conv: Tensor, grid: StateGrid) -> Tensor:
        return causal_convolution(inputs, self.weights["conv"], conv, grid)
