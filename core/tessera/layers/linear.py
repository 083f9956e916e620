"""Linear layers and their weights: as stored, quantized at load, or quantized by the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.weights import Join, Parameter
from tessera.ops import LinearSpec
from tessera.platform.model import Product, ProductLayer
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part
from tessera.quantization.weights import ProductWeight

Parts = Mapping[str, Join | Sequence[Join]]


def product_parameter(
    build: Build,
    spec: LinearSpec,
    parts: Parts,
    *,
    stacked: bool = False,
    module: str = "Linear",
    keep: str = "",
) -> tuple[LinearSpec, Parameter]:
    """The spec to bind and the registered parameter. module: the class that holds the weight in the model's original
    code; "Conv1D" stores it as [k, n]. keep: the reason why it must not be quantized, if any."""
    weight: Any = parts["weight"] if stacked else [parts["weight"]]
    if keep:
        build.weights.skip(weight[0][0].name.removesuffix(".weight"), keep)
        chosen = ProductWeight(spec, {"weight": weight})
    else:
        chosen = build.weights.choose(spec, weight, build.ops, module)
    read = {name: joins if stacked else joins[0] for name, joins in chosen.parts.items()}

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        if module == "Conv1D":
            raw["weight"] = raw["weight"].T.contiguous()
        if chosen.convert is not None:
            chosen.convert(raw)
        return build.ops.prepare("linear", chosen.spec, raw, into)

    return chosen.spec, build.register_parameter(Parameter({**parts, **read}, prepare, stacked=stacked))


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

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def weight(self) -> Part:
        return Part(f"{self.name}.weight", (self.n, self.k), _less(self.rows, self.n), _less(self.columns, self.k))

    @property
    def bias(self) -> Part:
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


class Linear:
    """One or several checkpoint weights as one product: y = x W^T + b, with outputs in the order of the sources. If it
    is sharded by columns, only the first rank adds the bias, because the results are summed over ranks. keep: the
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
        asked = LinearSpec(n, k, dtype or build.dtype, bias=bias)
        self.spec, self.parameter = product_parameter(build, asked, parts, keep=keep)
        layers = tuple(_layer(list(shards)) for _, shards in groupby(sources, lambda source: source.name))
        build.products.append(Product(self.spec, layers, self.parameter.attach))
        self.call = build.ops.bind("linear", self.spec)

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = self.call(x, self.parameter.packed, out=out)
        return result

    @property
    def weight(self) -> Packed:
        return self.parameter.packed
