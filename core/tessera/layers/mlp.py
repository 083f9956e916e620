"""MLPs: gated, plain and mixtures of experts. All are sharded over the inner dimension, so that the result is this
rank's partial sum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Linear, WeightShard, product_parameter
from tessera.ops import ActivationSpec, ExpertsSpec, GatedMLPSpec, GateSpec, LinearSpec, MLPSpec, MoESpec, RouteSpec
from tessera.platform.quantization import Part

ROUTER = "routers choose, and are small"
"""Why routers are never quantized."""


class GatedMLP:
    """joined: the name of the checkpoint tensor that holds gate and up, one after the other, if it has one."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden: int,
        inner: int,
        activation: str,
        *,
        bias: bool = False,
        joined: str | None = None,
    ) -> None:
        start, stop = build.shard(inner, "the inner size of the MLP")
        if joined is None:
            sources = [
                WeightShard(f"{prefix}.{name}", inner, hidden, (start, stop)) for name in ("gate_proj", "up_proj")
            ]
        else:
            rows = (start, stop), (inner + start, inner + stop)
            sources = [WeightShard(f"{prefix}.{joined}", 2 * inner, hidden, half) for half in rows]
        self.gate_up = Linear(build, sources, bias=bias)
        down = WeightShard(f"{prefix}.down_proj", hidden, inner, columns=(start, stop))
        self.down = Linear(build, [down], bias=bias)
        spec = GatedMLPSpec(self.gate_up.spec, GateSpec(stop - start, build.dtype, activation), self.down.spec)
        self.call = build.ops.bind("gated_mlp", spec)
        self.wants = build.ops.wants("gated_mlp", spec)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, self.gate_up.weight, self.down.weight)
        return result


class MLP:
    """An MLP without a gate. up, down: the names of its weights."""

    def __init__(
        self, build: Build, up: str, down: str, hidden: int, inner: int, activation: str, *, bias: bool = False
    ) -> None:
        part = build.shard(inner, "the inner size of the MLP")
        self.up = Linear(build, [WeightShard(up, inner, hidden, part)], bias=bias)
        self.down = Linear(build, [WeightShard(down, hidden, inner, columns=part)], bias=bias)
        act = ActivationSpec(part[1] - part[0], build.dtype, activation)
        self.call = build.ops.bind("mlp", MLPSpec(self.up.spec, act, self.down.spec))

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, self.up.weight, self.down.weight)
        return result


@dataclass(frozen=True)
class ExpertNames:
    """The names of a router's and the experts' weights in a checkpoint; {} stands for the expert's number."""

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
        self.router = Linear(build, [WeightShard(names.router, experts, hidden)], keep=ROUTER)
        wide = [
            [Part(f"{name.format(e)}.weight", (inner, hidden), part) for name in (names.gate, names.up)]
            for e in range(experts)
        ]
        back = [[Part(f"{names.down.format(e)}.weight", (hidden, inner), columns=part)] for e in range(experts)]
        asked = LinearSpec(2 * n, hidden, build.dtype, experts=experts)
        gate_up, self.gate_up = product_parameter(build, asked, {"weight": wide}, stacked=True)
        asked = LinearSpec(hidden, n, build.dtype, experts=experts)
        down, self.down = product_parameter(build, asked, {"weight": back}, stacked=True)
        spec = ExpertsSpec(gate_up, GateSpec(n, build.dtype, activation), down, top_k)
        self.wants = None  # routing and experts both use the unquantized activation
        self.call = build.ops.bind("moe", MoESpec(self.router.spec, RouteSpec(experts, top_k, renormalise), spec))

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, self.router.weight, self.gate_up.packed, self.down.packed)
        return result
