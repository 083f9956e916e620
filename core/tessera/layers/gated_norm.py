"""A norm whose result is multiplied by gates that are computed from it, through fewer elements (A.X-K2)."""

from __future__ import annotations

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.norm import AddNorm, Norm
from tessera.ops import ActivationSpec, MLPSpec, SigmoidGateSpec


class GatedNorm:
    """(x, residual) -> (y sigmoid(up(silu(down(y)))), x + residual), where y is the norm of the sum. A partial sum x is
    first reduced over the ranks. rank: elements between both products, which every rank has all of."""

    def __init__(self, build: Build, name: str, n: int, rank: int, norm: Norm) -> None:
        self.norm = AddNorm(build, f"{name}.norm", n, norm)
        self.down = Linear(build, [WeightShard(f"{name}.W_down", rank, n)])
        self.up = Linear(build, [WeightShard(f"{name}.W_up", n, rank)])
        activation = ActivationSpec(rank, build.dtype, "silu")
        self.gates = build.ops.bind("mlp", MLPSpec(self.down.single, activation, self.up.single))
        self.gate = build.ops.bind("sigmoid_gate", SigmoidGateSpec(n, build.dtype, n))

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        normed, residual = self.norm(x, residual)
        gates = self.gates(normed, *self.down.weights, *self.up.weights)
        return self.gate(normed, gates), residual
