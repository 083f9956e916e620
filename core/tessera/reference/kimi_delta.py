"""Kimi delta attention over a StateSpec: the reference definition of a delta net with a decay for each element of a key
(Kimi Linear, arXiv:2510.26692).

Queries, keys and values pass a short causal convolution and SiLU; queries and keys get length 1. The delta rule
(delta_rule.py) has g = -exp(a_log) softplus(f + dt_bias) and beta = sigmoid(b). The result is y's RMS norm, times the
sigmoid of a gate.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.device import Device
from tessera.platform.ops import BoundOps
from tessera.reference.convolution import causal_convolution
from tessera.reference.delta_rule import chunked_by_channel, recurrent, unit
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "kimi_delta_attention"


class ReferenceKimiDelta(StateBackend):
    name = "reference_kimi_delta_attention"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> KimiDeltaLayer:
        return KimiDeltaLayer(spec, weights)


class KimiDeltaLayer(StateLayer):
    """x [T, 5 H D + H]: queries, keys, values, f, gates and b, each ordered by head. Planes: conv [3 H D, kernel - 1],
    the last inputs of the convolution, and state [H, D, D]."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights, self.eps = spec, weights, dict(spec.options)["eps"]

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        spec, n = self.spec, self.spec.num_heads * self.spec.head_dim
        mixed, forget, gate, b = laid.split((3 * n, n, n, spec.num_heads), dim=-1)
        conv, states = caches[spec.layer]
        mixed = F.silu(causal_convolution(mixed, self.weights["conv"], conv, grid))
        q, k, v = (one.unflatten(-1, (-1, spec.head_dim)) for one in mixed.chunk(3, dim=-1))
        inside = grid.valid[..., None]
        decay = torch.where(inside[..., None], self._decay(forget), 0.0)
        beta = torch.where(inside, b.sigmoid(), 0.0)
        before = torch.where(grid.fresh[:, None, None, None], 0.0, states[grid.slot].float())
        rule = recurrent if laid.shape[1] == 1 else chunked_by_channel
        mixed, after = rule(unit(q) * spec.scale, unit(k), v, decay, beta, before)
        states.index_put_((grid.slot,), after.to(states.dtype))
        return self._normed(mixed, gate)

    def _decay(self, forget: Tensor) -> Tensor:
        """The logarithm [R, W, H, D]."""
        step = F.softplus(forget + self.weights["dt_bias"])
        return -self.weights["a_log"].exp()[:, None] * step.unflatten(-1, (-1, self.spec.head_dim))

    def _normed(self, mixed: Tensor, gate: Tensor) -> Tensor:
        scaled = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weights["norm"].float()).flatten(2) * gate.sigmoid()
