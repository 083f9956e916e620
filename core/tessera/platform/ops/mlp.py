"""Products with an activation between them."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.platform.ops.elementwise import ActivationSpec, GateSpec
from tessera.platform.ops.linear import LinearSpec


@dataclass(frozen=True)
class GatedMLPSpec:
    gate_up: LinearSpec
    gate: GateSpec
    down: LinearSpec


@dataclass(frozen=True)
class MLPSpec:
    up: LinearSpec
    activation: ActivationSpec
    down: LinearSpec
