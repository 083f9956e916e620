"""Products with an activation between them."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.platform.ops.elementwise import ActivationSpec, GateSpec
from tessera.platform.ops.linear import LinearSpec


@dataclass(frozen=True)
class GatedMLPSpec:
    """down(gate(gate_up(x))): gate_up makes [T, 2 n], the gate's half first, gate [T, n], down [T, hidden]. Sharded
    over a group each rank has its part of n, and the result is its summand."""

    gate_up: LinearSpec
    gate: GateSpec
    down: LinearSpec


@dataclass(frozen=True)
class MLPSpec:
    """down(activation(up(x))), sharded as GatedMLPSpec is."""

    up: LinearSpec
    activation: ActivationSpec
    down: LinearSpec
