"""The weight of a product: as it is, or quantised as it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.weights import Join, Parameter, Part
from tessera.ops import LinearSpec
from tessera.platform.kernel import Packed
from tessera.platform.quantization import Scheme
from tessera.quantization import quantised

Parts = Mapping[str, Join | Sequence[Join]]


def product_parameter(
    build: Build, asked: LinearSpec, parts: Parts, *, stacked: bool = False, turned: bool = False, keep: str = ""
) -> tuple[LinearSpec, Parameter]:
    """The spec that the product has, and its parameter. turned: the checkpoint has the weight as [k, n]. keep: why it
    is never quantised."""
    spec, stored = _chosen(build, asked, _name(parts["weight"]), keep)

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        if turned:
            raw["weight"] = raw["weight"].T.contiguous()
        if stored is not None:  # what it is made of is gone before it is packed
            raw.update(quantised(raw.pop("weight"), stored))
        return build.ops.prepare("linear", spec, raw, into)

    return spec, build.register_parameter(Parameter(parts, prepare, stacked=stacked))


def _chosen(build: Build, asked: LinearSpec, name: str, keep: str) -> tuple[LinearSpec, Scheme | None]:
    if not keep:
        return build.weights.choose(asked, name, build.ops)
    build.weights.leave(name, keep)
    return asked, None


def _name(joins: Join | Sequence[Join]) -> str:
    """Of the first tensor, without ".weight"."""
    first = joins[0]
    return (first if isinstance(first, Part) else first[0]).name.removesuffix(".weight")
