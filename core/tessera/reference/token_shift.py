"""Token shift over a StateSpec: the reference definition of a mixer that mixes each token with the one before it (RWKV,
arXiv:2305.13048).

y_t = m x_t + (1 - m) x_(t-1) for each vector m of the layer, where x is 0 before the first token.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.reference.convolution import behind_the_last
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "token_shift"


class ReferenceTokenShift(StateBackend):
    name = "reference_token_shift"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> TokenShiftLayer:
        return TokenShiftLayer(spec, weights)


class TokenShiftLayer(StateLayer):
    """x [T, channels], which are the elements of the spec's only head -> [T, mixes * channels]. Plane: last [channels,
    1], the last token. Weights: mix [mixes, channels]. Option: mixes."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights = spec, weights

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        (last,) = caches[self.spec.layer]
        mixed = self._mixed(laid, behind_the_last(laid, last, grid)[:, :-1])
        return mixed.flatten(-2)

    def _mixed(self, tokens: Tensor, before: Tensor) -> Tensor:
        """[R, W, channels] each -> [R, W, mixes, channels]"""
        mix = self.weights["mix"]
        return mix * tokens[..., None, :] + (1.0 - mix) * before[..., None, :]
