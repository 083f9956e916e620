"""Linear layers and their weights: as stored, quantized at load, or quantized by the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from typing import Any

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.weights import Join, Parameter
from tessera.ops import JoinedLinearSpec, LinearSpec
from tessera.platform.model import Product, ProductLayer
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part
from tessera.quantization.weights import ProductWeight

Parts = Mapping[str, Join | Sequence[Join]]


def product_parameters(
    build: Build,
    spec: LinearSpec,
    parts: Parts,
    *,
    stacked: bool = False,
    module: str = "Linear",
    keep: str = "",
    bias: Callable[[], Tensor] | None = None,
) -> list[tuple[LinearSpec, Parameter]]:
    """The specs to bind and the registered parameters: one of each, or several whose outputs are one after the other,
    if parts of the weight are stored differently. module: the class that holds the weight in the model's original code;
    "Conv1D" stores it as [k, n], "Convolution" as [n, channels, width]. keep: the reason why it must not be quantized,
    if any. bias: makes one that no checkpoint has, of a weight of one part."""
    weight: Any = parts["weight"] if stacked else [parts["weight"]]
    if keep:
        build.weights.skip(weight[0][0].name.removesuffix(".weight"), keep)
        return [_product_parameter(build, ProductWeight(spec, {"weight": weight}), parts, stacked, module, bias)]
    products, first = [], 0
    for chosen in build.weights.choose(spec, weight, build.ops, module):
        last = first + len(chosen.parts["weight"][0])
        others = {name: joins if stacked else joins[first:last] for name, joins in parts.items()}
        products.append(_product_parameter(build, chosen, others, stacked, module, bias))
        first = last
    return products


def _product_parameter(
    build: Build,
    chosen: ProductWeight,
    parts: Parts,
    stacked: bool,
    module: str,
    bias: Callable[[], Tensor] | None,
) -> tuple[LinearSpec, Parameter]:
    read = {name: joins if stacked else joins[0] for name, joins in chosen.parts.items()}

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        if module == "Conv1D":
            raw["weight"] = raw["weight"].T.contiguous()
        if module == "Convolution":
            raw["weight"] = raw["weight"].flatten(1)
        if chosen.convert is not None:
            chosen.convert(raw)
        if bias is not None:
            raw["bias"] = bias()
        return build.ops.prepare("linear", chosen.spec, raw, into)

    return chosen.spec, build.register_parameter(Parameter({**parts, **read}, prepare, stacked=stacked))


def product_parameter(
    build: Build,
    spec: LinearSpec,
    parts: Parts,
    *,
    stacked: bool = False,
    module: str = "Linear",
    bias: Callable[[], Tensor] | None = None,
) -> tuple[LinearSpec, Parameter]:
    """The same for a weight that is one product however it is stored: that of experts, or of a single part."""
    (product,) = product_parameters(build, spec, parts, stacked=stacked, module=module, bias=bias)
    return product


class Products:
    """The products of one input whose results lie side by side: one, or several of weights that are stored differently,
    bound as the op `linear` or `joined_linear`. The arguments are those of product_parameters()."""

    def __init__(self, build: Build, spec: LinearSpec, parts: Parts, *, module: str = "Linear", keep: str = "") -> None:
        products = product_parameters(build, spec, parts, module=module, keep=keep)
        self.specs, self.parameters = [one for one, _ in products], [parameter for _, parameter in products]
        self.spec = self.specs[0] if len(products) == 1 else JoinedLinearSpec(tuple(self.specs))
        self.op = "linear" if len(products) == 1 else "joined_linear"
        self.call = build.ops.bind(self.op, self.spec)

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = self.call(x, *self.weights, out=out)
        return result

    @property
    def single(self) -> LinearSpec:
        """The spec of the only product, which a weight of one part always is."""
        (spec,) = self.specs
        return spec

    @property
    def weights(self) -> list[Packed]:
        """The weight of each product."""
        return [parameter.packed for parameter in self.parameters]


Bounds = tuple[int, int]
"""(start, stop), excluding stop."""


@dataclass(frozen=True)
class WeightShard:
    """One checkpoint weight [n, k]: its name without ".weight", and the rows and columns to use; None for all."""

    name: str
    n: int
    k: int
    rows: Bounds | None = None
    columns: Bounds | None = None
    # Where it has no bias beside others that have one: the name of one of these, of as many rows.
    bias_beside: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def weight(self) -> Part:
        return Part(f"{self.name}.weight", (self.n, self.k), _less(self.rows, self.n), _less(self.columns, self.k))

    @property
    def bias(self) -> Part:
        if self.bias_beside:  # rows past the end of another's, which are zeros
            return Part(f"{self.bias_beside}.bias", (self.n,), (self.n, self.n + self.shape[0]), fill=0.0)
        return Part(f"{self.name}.bias", (self.n,), _less(self.rows, self.n))


def _layer(shards: Sequence[WeightShard]) -> ProductLayer:
    """The layer that consecutive shards of one weight belong to."""
    first = shards[0]
    outputs = [range(*(shard.rows or (0, shard.n))) for shard in shards]
    whole = outputs[0] if len(outputs) == 1 else tuple(chain.from_iterable(outputs))
    return ProductLayer(first.name, first.k, first.n, whole, first.columns or (0, first.k))


def _less(bounds: Bounds | None, size: int) -> Bounds | None:
    """Bounds, or None if they cover everything."""
    return None if bounds == (0, size) else bounds


class Linear(Products):
    """One or several checkpoint weights over the same input: y = x W^T + b, with outputs in the order of the sources.
    If it is sharded by columns, only the first rank adds the bias, because the results are summed over ranks. keep: the
    reason why the weight must not be quantized, if any. dtype: of weight, input and result; None: the model's."""

    def __init__(
        self,
        build: Build,
        sources: Sequence[WeightShard],
        *,
        bias: bool = False,
        keep: str = "",
        dtype: str | None = None,
    ) -> None:
        n, k = sum(source.shape[0] for source in sources), sources[0].shape[1]
        bias = bias and (k == sources[0].k or build.group.rank == 0)
        parts = {"weight": [replace(source.weight, dtype=dtype) for source in sources]}
        if bias:
            parts["bias"] = [replace(source.bias, dtype=dtype) for source in sources]
        super().__init__(build, LinearSpec(n, k, dtype or build.dtype, bias=bias), parts, keep=keep)
        remaining = iter(sources)
        for spec, parameter in zip(self.specs, self.parameters, strict=True):
            own = list(islice(remaining, len(parameter.joins("weight")[0])))
            layers = tuple(_layer(list(shards)) for _, shards in groupby(own, lambda source: source.name))
            build.products.append(Product(spec, layers, parameter.attach))
