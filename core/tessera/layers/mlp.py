"""MLPs: gated, plain and mixtures of experts. All are sharded over the inner dimension, or experts are divided whole
among the ranks of the expert group. Either way the result is this rank's partial sum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Bounds, Linear, WeightShard, product_parameter
from tessera.layers.weights import Parameter
from tessera.ops import (
    ActivationSpec,
    AddSpec,
    ClampedGateSpec,
    ExpertsSpec,
    GatedMLPSpec,
    GateSpec,
    LinearSpec,
    MLPSpec,
    MoESpec,
    RouteSpec,
    SigmoidGateSpec,
)
from tessera.ops.tensors import torch_dtype
from tessera.platform.ops import HotCall, Packed
from tessera.platform.quantization import Part

ROUTER = "routers choose, and are small"
"""Why routers are never quantized."""


@dataclass(frozen=True)
class GatedNames:
    """What a checkpoint calls the weights of a gated MLP, behind its prefix."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    # the tensor that holds gate and up, one after the other, if it has one
    joined: str | None = None
    # whether up comes before gate in it
    up_first: bool = False

    def gate_up(self, prefix: str, inner: int, hidden: int, part: Bounds) -> list[WeightShard]:
        """The shards, gate before up. part: this rank's part of the inner size."""
        if self.joined is None:
            return [WeightShard(f"{prefix}.{name}", inner, hidden, part) for name in (self.gate, self.up)]
        firsts = (inner, 0) if self.up_first else (0, inner)
        rows = [(first + part[0], first + part[1]) for first in firsts]
        return [WeightShard(f"{prefix}.{self.joined}", 2 * inner, hidden, half) for half in rows]


GATED = GatedNames()


class GatedMLP:
    """down_bias: whether the last product has a bias; None: as the others."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden: int,
        inner: int,
        activation: str,
        *,
        bias: bool = False,
        down_bias: bool | None = None,
        names: GatedNames = GATED,
    ) -> None:
        start, stop = part = build.shard(inner, "the inner size of the MLP")
        self.gate_up = Linear(build, names.gate_up(prefix, inner, hidden, part), bias=bias)
        down = WeightShard(f"{prefix}.{names.down}", hidden, inner, columns=part)
        self.down = Linear(build, [down], bias=bias if down_bias is None else down_bias)
        gate = GateSpec(stop - start, build.dtype, activation)
        if isinstance(self.gate_up.spec, LinearSpec):
            spec = GatedMLPSpec(self.gate_up.spec, gate, self.down.single)
            self.call, self.wants = build.ops.bind("gated_mlp", spec), build.ops.wants("gated_mlp", spec)
        else:
            self.call = self._products(build, gate)
            self.wants = build.ops.wants(self.gate_up.op, self.gate_up.spec)

    def _products(self, build: Build, spec: GateSpec) -> HotCall:
        """Gate and up that are stored differently: no kernel fuses the gate with them."""
        gate = build.ops.bind_emitting("gate", spec, build.ops.wants(self.down.op, self.down.spec))
        return lambda x, *weights: self.down.call(gate(self.gate_up.call(x, *weights[:-1])), weights[-1])

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, *self.gate_up.weights, *self.down.weights)
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
        self.call = build.ops.bind("mlp", MLPSpec(self.up.single, act, self.down.single))

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(x, *self.up.weights, *self.down.weights)
        return result


@dataclass(frozen=True)
class ExpertNames:
    """The names of a mixture's weights in a checkpoint; {layer} stands for the layer's number, or what precedes the
    names of its weights, and {} for the expert's number. "": there is none."""

    router: str
    # of an expert; without gate, its MLP has none
    gate: str
    up: str
    down: str
    # the tensor that is added to scores for choosing
    bias: str = ""
    # the MLP of the shared experts
    shared: str = ""
    # of the number whose sigmoid a token multiplies their result by
    shared_gate: str = ""
    # the products before and behind all experts
    latent_in: str = ""
    latent_out: str = ""

    def for_layer(self, layer: int | str) -> ExpertNames:
        """Those of one layer."""
        return ExpertNames(**{name: said.replace("{layer}", str(layer)) for name, said in vars(self).items()})


@dataclass(frozen=True)
class Experts:
    """The mixture of experts of a model's layers."""

    route: RouteSpec
    # inner size of an expert
    inner: int
    names: ExpertNames
    # inner size of the MLP that every token uses besides its experts; 0: there is none
    shared: int = 0
    # the weights of that MLP
    shared_names: GatedNames = GATED
    # in which experts are scored; None: the model's
    router_dtype: str | None = None
    # whether weights multiply what experts are given, not their results (MoESpec.weighs_inputs)
    weighs_inputs: bool = False
    # elements of what experts take and return instead of x; 0: they take x
    latent: int = 0
    # of that MLP's products, if it has no gate
    shared_bias: bool = False
    # whether the router and the products of experts have biases
    bias: bool = False
    # limit and slope, if the gates of experts are clamped (ClampedGateSpec); the activation is not used then
    clamp: tuple[float, float] | None = None


class MixtureOfExperts:
    """layer: what {layer} stands for in the names."""

    def __init__(self, build: Build, experts: Experts, layer: int | str, hidden: int, activation: str) -> None:
        names, route = experts.names.for_layer(layer), experts.route
        router = WeightShard(names.router, route.experts, hidden)
        self.router = Linear(build, [router], bias=experts.bias, keep=ROUTER, dtype=experts.router_dtype)
        self.bias = _bias_parameter(build, names.bias, route) if route.bias else None
        spec = self._experts(build, experts, names, experts.latent or hidden, activation)
        self.wants = None  # routing and experts both use the unquantized activation
        self.call = (
            self._through_latent(build, experts, names, hidden, spec)
            if experts.latent
            else build.ops.bind("moe", MoESpec(self.router.single, route, spec, experts.weighs_inputs))
        )
        self.shared = _shared(build, experts, names.shared, hidden, activation)
        self.shared_gate = SharedGate(build, names.shared_gate, hidden) if names.shared_gate else None
        self.add = build.ops.bind("add", AddSpec(hidden, build.dtype)) if experts.shared else None

    def _experts(self, build: Build, experts: Experts, names: ExpertNames, hidden: int, activation: str) -> ExpertsSpec:
        inner, whole = experts.inner, build.expert_group.size > 1
        own = build.experts(experts.route.experts)
        start, stop = (0, inner) if whole else build.shard(inner, "the inner size of the experts")
        n, part = stop - start, None if stop - start == inner else (start, stop)
        first = [names.gate, names.up] if names.gate else [names.up]
        wide = [[Part(f"{name.format(e)}.weight", (inner, hidden), part) for name in first] for e in own]
        back = [[Part(f"{names.down.format(e)}.weight", (hidden, inner), columns=part)] for e in own]
        of_wide, of_back = {"weight": wide}, {"weight": back}
        ends = experts.bias and (whole or build.group.rank == 0)  # the results are summed over ranks
        if experts.bias:
            of_wide["bias"] = [[Part(f"{name.format(e)}.bias", (inner,), part) for name in first] for e in own]
        if ends:
            of_back["bias"] = [[Part(f"{names.down.format(e)}.bias", (hidden,))] for e in own]
        asked = LinearSpec(len(first) * n, hidden, build.dtype, bias=experts.bias, experts=len(own))
        gate_up, self.gate_up = product_parameter(build, asked, of_wide, stacked=True)
        asked = LinearSpec(hidden, n, build.dtype, bias=ends, experts=len(own))
        down, self.down = product_parameter(build, asked, of_back, stacked=True)
        top_k = 1 if experts.weighs_inputs else experts.route.top_k
        return ExpertsSpec(gate_up, _gate(experts, names, n, build.dtype, activation), down, top_k, own.start)

    def _through_latent(
        self, build: Build, experts: Experts, names: ExpertNames, hidden: int, spec: ExpertsSpec
    ) -> HotCall:
        """The parts of a mixture whose experts take a product of what the router takes."""
        enter = Linear(build, [WeightShard(names.latent_in, experts.latent, hidden)])
        leave = Linear(build, [WeightShard(names.latent_out, hidden, experts.latent)])
        choose, run = build.ops.bind("route", experts.route), build.ops.bind("experts", spec)
        wide = torch_dtype(self.router.single.dtype)

        def call(x: Tensor, router: Packed, gate_up: Packed, down: Packed, *bias: Tensor) -> Tensor:
            weights, ids = choose(self.router.call(x.to(wide), router), *bias)
            return leave(run(enter(x), weights, ids, gate_up, down))

        return call

    def chosen(self, x: Tensor) -> Tensor:
        """What the experts that each token chooses make of it."""
        weights = *self.router.weights, self.gate_up.packed, self.down.packed
        result: Tensor = self.call(x, *weights) if self.bias is None else self.call(x, *weights, self.bias.tensor)
        return result

    def __call__(self, x: Tensor) -> Tensor:
        return self.joined(x, self.chosen(x))

    def joined(self, x: Tensor, chosen: Tensor) -> Tensor:
        """With what the MLP makes of x that every token uses. chosen: of the experts."""
        if self.shared is None or self.add is None:
            return chosen
        shared = self.shared(x)
        both: Tensor = self.add(chosen, shared if self.shared_gate is None else self.shared_gate(x, shared))
        return both


def _gate(
    experts: Experts, names: ExpertNames, n: int, dtype: str, activation: str
) -> GateSpec | ClampedGateSpec | ActivationSpec:
    if experts.clamp is not None:
        return ClampedGateSpec(n, dtype, *experts.clamp)
    return (GateSpec if names.gate else ActivationSpec)(n, dtype, activation)


def _shared(build: Build, experts: Experts, prefix: str, hidden: int, activation: str) -> GatedMLP | MLP | None:
    if not experts.shared:
        return None
    if not experts.names.gate:
        up, down = (f"{prefix}.{name}" for name in (experts.shared_names.up, experts.shared_names.down))
        return MLP(build, up, down, hidden, experts.shared, activation, bias=experts.shared_bias)
    return GatedMLP(build, prefix, hidden, experts.shared, activation, names=experts.shared_names)


class SharedGate:
    """Multiplies what the shared experts return for a token by the sigmoid of a number that the token has."""

    def __init__(self, build: Build, name: str, hidden: int) -> None:
        self.linear = Linear(build, [WeightShard(name, 1, hidden)], keep=ROUTER)
        self.call = build.ops.bind("sigmoid_gate", SigmoidGateSpec(hidden, build.dtype, 1))

    def __call__(self, x: Tensor, shared: Tensor) -> Tensor:
        result: Tensor = self.call(shared, self.linear(x))
        return result


def _bias_parameter(build: Build, name: str, route: RouteSpec) -> Parameter:
    """[experts] float32 in every model: it balances experts by steps that a narrower dtype does not resolve."""
    part = Part(name, (route.experts,), fill=0.0, dtype="float32")
    return build.register_parameter(
        Parameter({"weight": [part]}, lambda raw, into: build.ops.prepare("route", route, raw, into))
    )
