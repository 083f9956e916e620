"""The gated delta net over a StateSpec: the reference definition of a mixer that corrects what its state holds of a
key.

Queries, keys and values pass a short causal convolution and SiLU; queries and keys get length 1. The delta rule
(delta_rule.py), for each value head with its key head's q and k, has g = -exp(a_log) softplus(a + dt_bias) and
beta = beta_scale sigmoid(b) (Gated Delta Networks, arXiv:2412.06464). The result is y's RMS norm, times SiLU of a gate.
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
from tessera.reference.delta_rule import chunked, recurrent, unit
from tessera.reference.state import StateBackend, StateLayer
from tessera.reference.state_grid import StateGrid

KIND = "gated_delta_net"


class ReferenceGatedDeltaNet(StateBackend):
    name = "reference_gated_delta_net"
    kind = KIND

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> GatedDeltaNetLayer:
        return GatedDeltaNetLayer(spec, weights)


class GatedDeltaNetLayer(StateLayer):
    """x [T, 2 Hk Dk + 2 Hv Dv + 2 Hv]: queries, keys, values, gates, b and a, each ordered by head. Planes: conv
    [channels, kernel - 1], the last inputs of the convolution, and state [Hv, Dk, Dv]."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        options = dict(spec.options)
        self.spec, self.weights, self.eps = spec, weights, options["eps"]
        self.key_dim, self.beta_scale = int(options["key_dim"]), options["beta_scale"]
        self.keys, self.values = spec.num_kv_heads * self.key_dim, spec.num_heads * spec.head_dim

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        spec = self.spec
        sizes = 2 * self.keys + self.values, self.values, spec.num_heads, spec.num_heads
        mixed, gate, b, a = laid.split(sizes, dim=-1)
        conv, states = caches[spec.layer]
        q, k, v = self._heads(F.silu(self._convolved(mixed, conv, grid)))
        decay = -self.weights["a_log"].exp() * F.softplus(a + self.weights["dt_bias"])
        inside = grid.valid[..., None]
        decay, beta = torch.where(inside, decay, 0.0), torch.where(inside, self.beta_scale * b.sigmoid(), 0.0)
        before = torch.where(grid.fresh[:, None, None, None], 0.0, states[grid.slot].float())
        rule = recurrent if laid.shape[1] == 1 else chunked
        mixed, after = rule(q * spec.scale, k, v, decay[..., None], beta, before)
        states.index_put_((grid.slot,), after.to(states.dtype))
        return self._normed(mixed, gate)

    def _convolved(self, inputs: Tensor, conv: Tensor, grid: StateGrid) -> Tensor:
        return causal_convolution(inputs, self.weights["conv"], conv, grid)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k [R, W, Hv, Dk], v [R, W, Hv, Dv]. Consecutive value heads share a key head."""
        q, k, v = mixed.split((self.keys, self.keys, self.values), dim=-1)
        shared = self.spec.num_heads // self.spec.num_kv_heads
        q, k = (unit(one.unflatten(-1, (-1, self.key_dim))).repeat_interleave(shared, dim=2) for one in (q, k))
        return q, k, v.unflatten(-1, (-1, self.spec.head_dim))

    def _normed(self, mixed: Tensor, gate: Tensor) -> Tensor:
        scaled = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weights["norm"].float()).flatten(2) * F.silu(gate)
