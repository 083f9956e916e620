"""Mixtures of experts: whom a token goes to, and what they make of it."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.platform.ops.elementwise import GateSpec
from tessera.platform.ops.linear import LinearSpec


@dataclass(frozen=True)
class RouteSpec:
    """Softmax over experts, the top_k largest; renormalise: their weights sum to 1."""

    experts: int
    top_k: int
    renormalise: bool = True


@dataclass(frozen=True)
class ExpertsSpec:
    """Gated MLPs of `experts` experts here, numbers first..first+experts of all; a token's result is the weighted sum
    over its experts that are here."""

    gate_up: LinearSpec
    gate: GateSpec
    down: LinearSpec
    top_k: int
    first: int = 0


@dataclass(frozen=True)
class MoESpec:
    """router, route and experts in one: x [T, hidden] -> [T, hidden], the weighted sum over a token's experts that are
    here."""

    router: LinearSpec
    route: RouteSpec
    experts: ExpertsSpec
