"""Gated MLPs, dense and of experts; both sharded over the inner dimension, so that the result is this rank's partial
sum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Linear, Source
from tessera.layers.weights import Part, Slot
from tessera.platform.ops import ExpertsSpec, GatedMLPSpec, GateSpec, LinearSpec, MoESpec, RouteSpec


class GatedMLP:
    def __init__(
        self, build: Build, prefix: str, hidden: int, inner: int, activation: str, *, bias: bool = False
    ) -> None:
        start, stop = build.shard(inner, "the inner size of the MLP")
        part = (start, stop) if build.group.size > 1 else None
        self.gate_up = Linear(
            build, [Source(f"{prefix}.{name}", inner, hidden, part) for name in ("gate_proj", "up_proj")], bias=bias
        )
        self.down = Linear(build, [Source(f"{prefix}.down_proj", hidden, inner, columns=part)], bias=bias)
        spec = GatedMLPSpec(self.gate_up.spec, GateSpec(stop - start, build.dtype, activation), self.down.spec)
        self.call = build.ops.bind("gated_mlp", spec)
        self.wants = build.ops.wants("gated_mlp", spec)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, self.gate_up.weight, self.down.weight)
        return result


@dataclass(frozen=True)
class ExpertNames:
    """Where a checkpoint keeps its experts; {} is the expert's number."""

    router: str
    gate: str
    up: str
    down: str


class MixtureOfExperts:
    def __init__(
        self,
        build: Build,
        names: ExpertNames,
        hidden: int,
        inner: int,
        experts: int,
        top_k: int,
        activation: str,
        *,
        renormalise: bool,
    ) -> None:
        start, stop = build.shard(inner, "the inner size of the experts")
        n, part = stop - start, (start, stop) if build.group.size > 1 else None
        self.router = Linear(build, [Source(names.router, experts, hidden)])
        gate_up = LinearSpec(2 * n, hidden, build.dtype, experts=experts)
        down = LinearSpec(hidden, n, build.dtype, experts=experts)
        spec = ExpertsSpec(gate_up, GateSpec(n, build.dtype, activation), down, top_k)
        wide = [
            [Part(f"{name.format(e)}.weight", (inner, hidden), part) for name in (names.gate, names.up)]
            for e in range(experts)
        ]
        back = [[Part(f"{names.down.format(e)}.weight", (hidden, inner), columns=part)] for e in range(experts)]
        self.gate_up = build.slot(
            Slot({"weight": wide}, lambda raw, into: build.ops.prepare("linear", gate_up, raw, into), stacked=True)
        )
        self.down = build.slot(
            Slot({"weight": back}, lambda raw, into: build.ops.prepare("linear", down, raw, into), stacked=True)
        )
        self.wants = None  # routing and experts both take the activation as it is
        self.call = build.ops.bind("moe", MoESpec(self.router.spec, RouteSpec(experts, top_k, renormalise), spec))

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, self.router.weight, self.gate_up.packed, self.down.packed)
        return result
