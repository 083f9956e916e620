"""Products with a weight, whole or sharded by rows (outputs) or columns (inputs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.product import product_parameter
from tessera.layers.weights import Part
from tessera.ops import LinearSpec
from tessera.platform.kernel import Packed

Bounds = tuple[int, int]
"""From start to stop, without stop."""


@dataclass(frozen=True)
class WeightShard:
    """One weight of the checkpoint, [n, k]: its name without ".weight", and the rows and columns of it that are wanted
    here; None is all."""

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


def _less(bounds: Bounds | None, size: int) -> Bounds | None:
    """Bounds that leave something out."""
    return None if bounds == (0, size) else bounds


class Linear:
    """One or several weights of the checkpoint as one product: y = x W^T + b, outputs in the order of the sources. Of a
    product sharded by columns only the first rank adds the bias, since the sum over ranks follows. keep: why the
    weight is never quantised."""

    def __init__(self, build: Build, sources: Sequence[WeightShard], *, bias: bool = False, keep: str = "") -> None:
        n, k = sum(source.shape[0] for source in sources), sources[0].shape[1]
        bias = bias and (k == sources[0].k or build.group.rank == 0)
        parts = {"weight": [source.weight for source in sources]}
        if bias:
            parts["bias"] = [source.bias for source in sources]
        asked = LinearSpec(n, k, build.dtype, bias=bias)
        self.spec, self.parameter = product_parameter(build, asked, parts, keep=keep)
        self.call = build.ops.bind("linear", self.spec)

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = self.call(x, self.parameter.packed, out=out)
        return result

    @property
    def weight(self) -> Packed:
        return self.parameter.packed
