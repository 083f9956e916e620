"""Lightning attention over a StateSpec: the reference definition of linear attention that fades by head.

Queries, keys and values are SiLU of what is projected. For each head, the state S [D, D] becomes

    S_t = exp(g) S_(t-1) + v_t k_t^T;  y_t = S_t q_t

with a number g <= 0 of the head (MiniMax-01, arXiv:2501.08313): what Mamba 2's rule computes, of a decay that no token
chooses.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.reference.mamba2 import chunked, recurrent
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "lightning_attention"


class ReferenceLightningAttention(StateBackend):
    name = "reference_lightning_attention"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> LightningLayer:
        return LightningLayer(spec, weights)


class LightningLayer(StateLayer):
    """x [T, H (3 D)]: a head's query, key and value, then those of the next. Plane: state [H, D, D], rows of values.
    Weight: log_decay [H], the g of each head."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights = spec, weights

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        q, k, v = self._activated(laid).unflatten(-1, (self.spec.num_heads, -1)).chunk(3, dim=-1)
        (states,) = caches[self.spec.layer]
        decay = torch.where(grid.valid[..., None], self.weights["log_decay"], 0.0)  # [R, W, H]
        before = torch.where(grid.fresh[:, None, None, None], 0.0, states[grid.slot].float())
        rule = recurrent if laid.shape[1] == 1 else chunked
        mixed, after = rule(q, k, v, decay, before)
        states.index_put_((grid.slot,), after.to(states.dtype))
        return mixed.flatten(2)

    def _activated(self, x: Tensor) -> Tensor:
        return F.silu(x)
